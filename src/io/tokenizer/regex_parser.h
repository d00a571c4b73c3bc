// SPDX-License-Identifier: Apache-2.0
// The regular part of Oniguruma's syntax as a tree; what a class means is left to libonig.
#pragma once
#include <cstddef>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace anabatic::io::tokenizer {

struct RegexNode {
  enum class Kind { kAtom, kSequence, kAlternatives, kRepeat, kAhead };
  enum class Preference { kGreedy, kLazy, kPossessive };
  static constexpr int kUnbounded = -1;

  Kind kind = Kind::kSequence;
  std::size_t atom = 0;     // kAtom, kAhead: its number
  bool is_negated = false;  // kAhead
  int min = 0;              // kRepeat
  int max = kUnbounded;
  Preference preference = Preference::kGreedy;
  std::vector<RegexNode> children;

  bool may_be_empty() const;
};

// What matches one character: a literal, an escape or a class, as a pattern of its own.
struct RegexAtom {
  std::string pattern;
  // Sorted, without repetition: between two neighbours all characters match, or none.
  std::vector<char32_t> bounds;
};

struct ParsedRegex {
  RegexNode root;
  std::vector<RegexAtom> atoms;
};

// Nothing if the pattern holds what is not regular, or what is not sure to mean the same here.
// `pattern` must have been accepted by libonig.
std::optional<ParsedRegex> parse_regular(std::string_view pattern);

}  // namespace anabatic::io::tokenizer
