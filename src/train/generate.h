// SPDX-License-Identifier: Apache-2.0
// Text from a prompt, with KV caches: the prompt goes through in chunks, then one token at a time.
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

// Runs tokens through the model, filling its caches row by row. Equal, bit for bit, to the full
// forward's logits of the same row.
class Decoder {
 public:
  // Binds two programs of the session, for a chunk of prompt rows and for one row. `capacity`: how
  // many tokens it will take. A session has one decoder at a time, whose caches go with it.
  Decoder(ModelSession& session, std::int64_t capacity);
  ~Decoder();
  Decoder(const Decoder&) = delete;
  Decoder& operator=(const Decoder&) = delete;

  // Appends tokens after what the caches hold and returns the logits of the last one, [vocab];
  // valid until the next call. InvalidArgument when the caches are full or `tokens` is empty.
  std::span<const float> append(std::span<const std::int32_t> tokens);

  std::int64_t length() const { return length_; }

 private:
  std::span<const float> run(BoundProgram& program, std::span<const std::int32_t> tokens);

  ModelSession& session_;
  std::int64_t capacity_, vocabulary_, length_ = 0;
  std::unique_ptr<BoundProgram> chunk_, single_;
  std::vector<std::int32_t> positions_, key_begin_, key_end_;
};

// Samples until a stop token (not emitted), max_new_tokens or the model's longest sequence; calls
// `emit` with each id as it comes. The session's parameters are used as they are, or those of
// run.model.path loaded where it has none.
void generate(ModelSession& session, std::span<const std::int32_t> prompt,
              std::span<const std::int64_t> stops, const std::function<void(std::int32_t)>& emit);

// As above from text to text, with the tokenizer of the model directory and the special tokens of
// io/tokenizer/special_tokens.h. Calls `emit` with each piece of the continuation.
void generate_text(const RunConfig& run, const std::string& prompt,
                   const std::function<void(const std::string&)>& emit);
void generate_text(ModelSession& session, const std::string& prompt,
                   const std::function<void(const std::string&)>& emit);

}  // namespace anabatic::train
