// SPDX-License-Identifier: Apache-2.0
// Int8 products by their definition (ARCHITECTURE.md, "int8 products"), one element after the
// other. Shares no code with cpu/int8.
#pragma once
#include <cstdint>
#include <vector>

#include "kernels/coding_counts.h"

namespace anabatic::kernels::ref {

// Lines along the depth, row-major; scales and falls_back [lines, blocks of 128].
struct CodedLines {
  std::int64_t lines = 0, depth = 0;
  std::vector<std::int16_t> codes, second_codes;
  std::vector<float> scales;
  std::vector<bool> falls_back;

  std::int64_t blocks() const { return (depth + 127) / 128; }
};

// No block of 128 falls back.
inline constexpr int kWithoutFallback = 128;

// The scale of elements up to this magnitude, NaN where one is not finite.
float scale_of_largest(float largest);

// x [lines, depth], a scale for each block of a line. A block of n int8 values falls back to second
// values if n · max|code| > fallback · Σ|code|.
CodedLines code_lines(const std::vector<float>& x, std::int64_t lines, std::int64_t depth,
                      int fallback);
// What it counts of x, by whose lines it is.
CodingCounts counts_of(const CodedLines& lines, const std::vector<float>& x);
// The same of values that are not negative, as u8 values: a scale is m / 255. None falls back.
CodedLines code_positive_lines(const std::vector<float>& x, std::int64_t lines, std::int64_t depth);
// w [lines, depth], a scale for each tile of 128 x 128.
CodedLines code_tiles(const std::vector<float>& w, std::int64_t lines, std::int64_t depth);
// The int8 values of the other direction, which has tiles in common.
CodedLines transposed_tiles(const CodedLines& w);

// y [a.lines, b.lines], to which the products are added.
void add_int8_product(const CodedLines& a, const CodedLines& b, std::vector<float>& y);

}  // namespace anabatic::kernels::ref
