// SPDX-License-Identifier: Apache-2.0
// UTF-8 for Oniguruma, with the properties and letter cases that Hugging Face's build of it has.
#pragma once
#include <oniguruma.h>

#include <vector>

namespace anabatic::io::tokenizer {

// Sorted, disjoint, not adjacent; both ends belong to a range.
struct CodeRange {
  char32_t first = 0;
  char32_t last = 0;
};
using CodeRanges = std::vector<CodeRange>;

inline constexpr char32_t kLatin1End = 0x100;

OnigEncoding onig_encoding();

// The characters of an Oniguruma class number; empty for an unknown one.
CodeRanges ranges_of_class(int number);

}  // namespace anabatic::io::tokenizer
