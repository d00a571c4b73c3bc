// SPDX-License-Identifier: Apache-2.0
// The character map of SentencePiece (precompiled_charsmap), applied as Hugging Face applies it.
#pragma once
#include <array>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "io/tokenizer/json_fields.h"

namespace anabatic::io::tokenizer {

// A double-array trie (that of the library Darts-clone) from spellings to replacements.
class CharacterMap {
 public:
  // `blob`: the bytes of the trie as a little-endian uint32, the trie, then replacements that end
  // in NUL. `place` begins the errors. O(units * 255).
  CharacterMap(std::string_view blob, const std::string& place);

  // SentencePiece replaces the longest spelling that `text` starts with, Hugging Face the shortest,
  // and then drops the rest of `text`. Returns false if there is none.
  bool find_shortest(std::string_view text, std::string_view& replacement) const;

 private:
  static constexpr std::uint32_t label(std::uint32_t unit) { return unit & 0x800000FFu; }
  static constexpr bool has_leaf(std::uint32_t unit) { return (unit >> 8 & 1) != 0; }
  static constexpr std::uint32_t offset(std::uint32_t unit) {
    return unit >> 10 << ((unit & 0x200) >> 6);
  }
  void check(const std::string& place) const;
  void check_leaf(std::uint32_t at, const std::string& place) const;

  std::vector<std::uint32_t> units_;
  std::string replacements_;
};

class Precompiled {
 public:
  explicit Precompiled(const JsonNode& node);
  void apply(std::string& text) const;

 private:
  void append_mapped(std::string_view cluster, std::string& result) const;

  CharacterMap map_;
  std::array<bool, 128> is_kept_{};  // ASCII characters without a replacement
};

}  // namespace anabatic::io::tokenizer
