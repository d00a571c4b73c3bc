// SPDX-License-Identifier: Apache-2.0
// Added tokens: found in the text before the model sees it, longest first, from left to right.
#pragma once
#include <array>
#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <string_view>
#include <unordered_map>
#include <unordered_set>
#include <vector>

#include "io/tokenizer/json_fields.h"
#include "io/tokenizer/normalizer.h"
#include "io/tokenizer/regex.h"

namespace anabatic::io::tokenizer {

struct AddedToken {
  std::string content;
  bool single_word = false;
  bool lstrip = false;
  bool rstrip = false;
  bool normalized = true;
  bool special = false;
};

// Whether a token may be matched at a place of the text.
using MayMatch = std::function<bool(const Match& match, bool is_special)>;

// A part of a text: an added token, or text between (id < 0).
struct TextPart {
  std::string_view text;
  std::int32_t id = -1;
};

// A trie over bytes that finds the longest of its words at a place.
class ByteTrie {
 public:
  ByteTrie();
  void insert(std::string_view word, std::int32_t value);
  bool empty() const { return nodes_.size() == 1; }
  // The next leftmost-longest match at or after `at`; value -1 if there is none.
  std::int32_t find(std::string_view text, std::size_t at, Match& match) const;

 private:
  struct Node {
    std::int32_t value = -1;
    std::vector<std::pair<unsigned char, std::uint32_t>> children;
  };
  std::vector<Node> nodes_;
  std::array<std::uint32_t, 256> roots_{};  // children of the root by byte, 0 = none
};

class AddedVocabulary {
 public:
  // Ids are given as Hugging Face's loader gives them: the model's where it has the token, else
  // one after the other from `model_size`; the `id` of the file is only checked.
  AddedVocabulary(const std::optional<JsonNode>& node, std::int32_t model_size,
                  const std::function<std::optional<std::int32_t>(const std::string&)>& model_id,
                  const Normalizers& normalizers);

  // Cuts raw text at the tokens that are matched before normalisation, or normalised text at the
  // others. The parts cover `text`; `parts` is overwritten.
  void split_raw(std::string_view text, RegexScratch& scratch, std::vector<TextPart>& parts,
                 const MayMatch& may_match) const {
    split(raw_, text, scratch, parts, may_match);
  }
  void split_normalized(std::string_view text, RegexScratch& scratch, std::vector<TextPart>& parts,
                        const MayMatch& may_match) const {
    split(normalized_, text, scratch, parts, may_match);
  }

  std::optional<std::int32_t> id_of(std::string_view content) const;
  // What decoding sees: the normalised form where the token is matched in it. Null if none.
  const std::string* text_of(std::int32_t id) const;
  bool is_special_text(std::string_view text) const;
  std::int32_t end_id() const { return end_id_; }  // largest id + 1

 private:
  struct Entry {
    AddedToken token;
    std::string decoded;
  };
  void split(const ByteTrie& trie, std::string_view text, RegexScratch& scratch,
             std::vector<TextPart>& parts, const MayMatch& may_match) const;
  bool is_single_word(std::string_view text, const Match& match, RegexScratch& scratch) const;
  bool is_word_at(std::string_view text, std::size_t at, RegexScratch& scratch) const;

  std::unordered_map<std::int32_t, Entry> entries_;
  std::unordered_map<std::string, std::int32_t> ids_;
  std::unordered_set<std::string> special_;
  ByteTrie raw_;
  ByteTrie normalized_;
  Regex word_;
  std::int32_t end_id_ = 0;
};

}  // namespace anabatic::io::tokenizer
