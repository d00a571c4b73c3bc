// SPDX-License-Identifier: Apache-2.0
// What is done to the text before it is cut: NFC and its kin, Prepend, Replace, Strip, ...
#pragma once
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "io/tokenizer/json_fields.h"
#include "io/tokenizer/regex.h"

namespace anabatic::io::tokenizer {

// A replacement of every match, shared by the normalizer and the decoder of that name.
class Replace {
 public:
  explicit Replace(const JsonNode& node);

  // True if the first character of the result stems from the first of `text`. A `is_continuation`
  // gets nothing in front where the pattern matches no character.
  bool apply(std::string_view text, RegexScratch& scratch, std::string& result,
             bool is_continuation = false) const;

 private:
  std::string literal_;
  std::unique_ptr<Regex> regex_;  // null: literal_
  std::string_view mark_;         // of a pattern of extra spaces that go; "": another pattern
  std::string content_;
};

class Normalizer {
 public:
  virtual ~Normalizer() = default;

  // Changes `text` in place. Returns false if its first character no longer stems from the first
  // one of the original (it matters to Metaspace with `prepend_scheme` first). `is_continuation`:
  // more of the text comes before it, so nothing is put in front.
  virtual bool apply(std::string& text, bool is_continuation, RegexScratch& scratch) const = 0;
};

// A chain in order of application; Sequences are flattened.
using Normalizers = std::vector<std::unique_ptr<const Normalizer>>;
Normalizers load_normalizers(const JsonNode& node);

}  // namespace anabatic::io::tokenizer
