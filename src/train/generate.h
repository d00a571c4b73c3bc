// SPDX-License-Identifier: Apache-2.0
// Generates text with KV caches: the prompt is processed in chunks, then one token at a time.
#pragma once
#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "train/model_session.h"
#include "train/sampler.h"

namespace anabatic::train {

// Runs tokens through the model and fills its caches row by row. Logits are equal, bit for bit, to
// those of the full forward.
class Decoder {
 public:
  // Binds two programs of the session, for a chunk of prompt rows and for one row. `capacity`: the
  // most tokens it will take. A session has one decoder at a time, which owns the caches.
  Decoder(ModelSession& session, std::int64_t capacity);
  ~Decoder();
  Decoder(const Decoder&) = delete;
  Decoder& operator=(const Decoder&) = delete;

  // Appends tokens after what the caches hold and returns the logits of the last one, [vocab];
  // valid until the next call. InvalidArgument when the caches are full or `tokens` is empty.
  std::span<const float> append(std::span<const std::int32_t> tokens);

  // Forgets all tokens but the first ones.
  void truncate(std::int64_t length) { length_ = length; }

  std::int64_t length() const { return length_; }
  std::int64_t capacity() const { return capacity_; }

 private:
  std::span<const float> run(BoundProgram& program, std::size_t rows,
                             std::span<const std::int32_t> tokens);

  ModelSession& session_;
  std::int64_t capacity_, num_places_, vocabulary_, length_ = 0;
  std::unique_ptr<BoundProgram> chunk_, single_;
  std::vector<std::int32_t> tokens_, positions_, places_, key_begin_, key_end_;
};

// Continues prompts, one after the other. The tokens that a prompt shares with those before it,
// from its beginning on, stay in the caches and are not computed again.
class Generator {
 public:
  // Uses the session's current parameters, or loads those of run.model.path if it has none.
  explicit Generator(ModelSession& session) : session_(session) {}

  // Samples until a stop token (not emitted), max_new_tokens or the model's longest sequence. Calls
  // `emit` with each id.
  void run(std::span<const std::int32_t> prompt, std::span<const std::int64_t> stops,
           const std::function<void(std::int32_t)>& emit);

  // Tokens of the last prompt, and those of them that were in the caches.
  std::int64_t length() const { return length_; }
  std::int64_t num_kept() const { return num_kept_; }

 private:
  std::span<const float> read(std::span<const std::int32_t> prompt, std::int64_t room);

  ModelSession& session_;
  std::unique_ptr<Decoder> decoder_;
  std::vector<std::int32_t> held_;  // the tokens in its caches
  std::int64_t length_ = 0, num_kept_ = 0;
};

// A single prompt.
void generate(ModelSession& session, std::span<const std::int32_t> prompt,
              std::span<const std::int64_t> stops, const std::function<void(std::int32_t)>& emit);

// From text to text, with the tokenizer of the model directory and the special tokens of
// io/tokenizer/special_tokens.h. Calls `emit` with each piece of the continuation.
void generate_text(const RunConfig& run, const std::string& prompt,
                   const std::function<void(const std::string&)>& emit);
void generate_text(ModelSession& session, const std::string& prompt,
                   const std::function<void(const std::string&)>& emit);

}  // namespace anabatic::train
