// SPDX-License-Identifier: Apache-2.0
// Which weights of a matrix are present, by magnitude. Results are a function of the values alone:
// sums are in double and in one order, and of equal scores the one with the lower index stays.
#pragma once
#include <array>
#include <cstdint>
#include <span>

#include "spec/sparsity.h"

namespace anabatic::train {

// What a mask is chosen for.
struct MaskForm {
  spec::SparsityPattern pattern = spec::SparsityPattern::kBlock32;
  bool is_transposable = false;  // of 2:4
};

// Fills the mask of a row-major matrix [rows, columns], of which `kept` elements become 1:
//
//   block32, block16   the blocks with the largest Frobenius norm
//   unstructured       the weights of the largest magnitude
//   2:4                in each group of four of a row the two of the largest magnitude
//   2:4 transposable   in each tile of 4 x 4 the one of kTwoOfFourTiles with the largest sum of
//                      magnitudes (Hubara et al., "Accelerated sparse neural training", 2021)
//
// Where `kept` of 2:4 is more than half, the groups or tiles that lose least become sparse, and the
// others stay whole. NaN counts as the largest magnitude. Not thread-safe within one mask.
void choose_mask(const MaskForm& form, std::span<const float> matrix, std::int64_t rows,
                 std::int64_t columns, std::int64_t kept, std::span<std::uint8_t> mask);

// Every tile of 4 x 4 with two elements in each row and column: bit 4 · row + column.
inline constexpr std::int64_t kNumTwoOfFourTiles = 90;
const std::array<std::uint16_t, kNumTwoOfFourTiles>& two_of_four_tiles();

}  // namespace anabatic::train
