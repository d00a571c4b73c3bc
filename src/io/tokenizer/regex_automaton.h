// SPDX-License-Identifier: Apache-2.0
// The patterns that need no backtracking, as a table: one look-up a character.
#pragma once
#include <array>
#include <cstdint>
#include <memory>
#include <string_view>
#include <vector>

#include "io/tokenizer/regex.h"

namespace anabatic::io::tokenizer {

// Finds what Oniguruma finds, alternatives and repetitions in order of preference: a state is the
// ordered list of places that a backtracking matcher would try.
class RegexAutomaton {
 public:
  // Null if the pattern holds anything else than characters, classes, groups, alternatives,
  // repetitions and one-character looks ahead, or if the table would be too large.
  static std::unique_ptr<const RegexAutomaton> build(std::string_view pattern);

  // The first match at or after `start` of `text` (valid UTF-8).
  bool find(std::string_view text, std::size_t start, Match& match) const;

 private:
  friend class AutomatonBuilder;
  static constexpr std::size_t kBlock = 128;  // characters

  std::size_t class_of(char32_t character) const {
    return blocks_[block_of_[character / kBlock] * kBlock + character % kBlock];
  }

  // Characters that no atom of the pattern tells apart are of one class.
  std::vector<std::uint16_t> block_of_;
  std::vector<std::uint8_t> blocks_;
  std::array<std::uint8_t, 128> ascii_{};

  // [state, class, the last one being the end of the text]: the next state, doubled, plus 1 where a
  // match ends before the character. State 0 has no way on; 1 is the start.
  std::vector<std::uint32_t> table_;
  std::size_t width_ = 0;
};

}  // namespace anabatic::io::tokenizer
