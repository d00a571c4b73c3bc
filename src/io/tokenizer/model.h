// SPDX-License-Identifier: Apache-2.0
// What turns one word into ids: the `model` of a tokenizer.json.
#pragma once
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "io/tokenizer/json_fields.h"
#include "io/tokenizer/merge.h"
#include "io/tokenizer/word_cache.h"

namespace anabatic::io::tokenizer {

// The best way to write a text up to one of its bytes (Unigram).
struct BestPath {
  double score = 0;
  std::size_t begin = 0;  // of its last token
  std::int32_t id = -1;   // of that token, -1: not reached
};

// Buffers of a model; one for each thread.
struct WordScratch {
  WordCache words;  // by text
  WordCache runs;   // by symbols
  MergeScratch merge;
  std::vector<std::int32_t> symbols;
  std::vector<BestPath> paths;
  std::string mapped;
  std::string character;
};

class Model {
 public:
  virtual ~Model() = default;

  // Words are then raw bytes that stand for their byte-level symbols.
  virtual void take_raw_bytes() = 0;

  // Appends the ids of one word (not empty, valid UTF-8).
  virtual void encode(std::string_view word, WordScratch& scratch,
                      std::vector<std::int32_t>& ids) const = 0;

  virtual std::int32_t num_tokens() const = 0;
  virtual std::int32_t end_id() const = 0;  // largest id + 1
  virtual std::optional<std::int32_t> id_of(std::string_view token) const = 0;
  virtual const std::string* token(std::int32_t id) const = 0;  // null if none
};

std::unique_ptr<Model> load_model(const JsonNode& node);

}  // namespace anabatic::io::tokenizer
