// SPDX-License-Identifier: Apache-2.0
// Pre-tokenizers that `tokenizer.ggml.pre` names: the patterns that cut a text into words, one
// after the other.
#pragma once
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace anabatic::io::tokenizer {

struct GgufPre {
  std::vector<std::string_view> names;  // the first is the one that is written
  // Of tokenizer.json. What matches a pattern is a word, and so is what is between two matches.
  std::vector<std::string_view> patterns;
  // As llama.cpp spells them where its classes of letters are others; empty: the same words.
  std::vector<std::string_view> own_patterns{};
  bool ignores_merges = false;  // a word that is a token is not merged
  bool adds_bos = false;        // where no key says so
};

std::span<const GgufPre> gguf_pres();
const GgufPre* find_gguf_pre(std::string_view name);  // null when there is none
// The one with these patterns of tokenizer.json; null when there is none.
const GgufPre* find_gguf_pre(const std::vector<std::string>& patterns, bool ignores_merges);
std::string gguf_pre_names();  // the first of each

// The pattern of GPT-2, which the component ByteLevel uses by itself.
extern const std::string_view kGpt2Pattern;
extern const std::string_view kDigitPattern;  // of Digits, one by one

}  // namespace anabatic::io::tokenizer
