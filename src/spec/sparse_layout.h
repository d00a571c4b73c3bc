// SPDX-License-Identifier: Apache-2.0
// How products read a sparse weight: the values of its present blocks, and an index of where they
// are. Graph side and kernels read these alike.
//
// A product of rows with a matrix has `lines` results a row, each a sum over `depth` elements. The
// forward of a weight [N,K] has N lines of depth K; its input gradient reads the transpose. Blocks
// are side x side. Lines are cut into panels of `side`, the depth into steps of `side`; the last of
// either may be shorter. One matrix has:
//
//   index   i32[panels + 1 + kept]: where the blocks of each panel begin and end, ascending from 0
//           to kept; then the step of each block, ascending within a panel.
//   values  [kept, side, side] in the order of the index, zero beyond the sides of the matrix.
//
// 2:4 has panels of 16 lines, and two weights of each four of the depth:
//
//   index   u8[panels · ceil(depth / 8) · 16]: for each panel, eight of the depth, and line, the
//           places of its two weights among the first four, then those among the other four. Two
//           bits a place, the lowest ones first; the places of four ascend.
//   values  [panels, 8 · depth]: for each four of the depth and line its two weights. In 16 bits
//           they lie side by side, and the later one first where only one of them is in the first
//           two of the four. Else 16 first weights are followed by 16 second ones.
//
// A stack of matrices has one of each a matrix, [E, ...]. Within a block of values there are groups
// of 16 lines (all lines of smaller blocks), and in it the depth: 16 lines side by side for each
// element of the depth, or in 16 bits for each pair of it, as in tensor/panels.h.
#pragma once
#include <algorithm>
#include <cstdint>

#include "base/rounding.h"
#include "spec/sparsity.h"

namespace anabatic::spec {

struct SparseLayout {
  std::int64_t side = 1, lines = 0, depth = 0;
  std::int64_t kept = 0;  // blocks, or panels of 2:4
  bool is_two_of_four = false;

  std::int64_t panels() const { return ceil_div(lines, side); }
  std::int64_t steps() const { return ceil_div(depth, side); }
  std::int64_t panel_index_size() const { return ceil_div(depth, 8) * side; }  // of 2:4
  std::int64_t index_size() const {
    return is_two_of_four ? panels() * panel_index_size() : panels() + 1 + kept;
  }
  std::int64_t block_size() const { return is_two_of_four ? side * depth / 2 : side * side; }
};

inline constexpr std::int64_t kTwoOfFourLines = 16;

// Of 2:4: where the places of a group of four of a line lie in the index, and their lowest bit.
inline std::int64_t place_byte(const SparseLayout& layout, std::int64_t line, std::int64_t group) {
  return line / layout.side * layout.panel_index_size() + group / 2 * layout.side +
         line % layout.side;
}
inline int place_bit(std::int64_t group) { return group % 2 != 0 ? 4 : 0; }
// Whether the weight at `second` is before that at `first` in 16 bits.
inline bool is_pair_turned(std::int64_t first, std::int64_t second) {
  return first / 2 != second / 2;
}
// Where they lie in the values of a panel: weight `n`, 0 or 1 as they are stored.
inline std::int64_t place_in_panel(bool has_16_bits, std::int64_t line, std::int64_t group,
                                   std::int64_t n) {
  const std::int64_t lines = kTwoOfFourLines;
  return has_16_bits ? (group * lines + line % lines) * 2 + n
                     : (group * 2 + n) * lines + line % lines;
}

// Where element k of the depth of a line lies in its block of values.
inline std::int64_t place_in_block(std::int64_t side, bool has_16_bits, std::int64_t line,
                                   std::int64_t k) {
  const std::int64_t group = std::min<std::int64_t>(side, 16);
  if (!has_16_bits || side == 1) return (line / group * side + k) * group + line % group;
  return ((line / group * side + k) / 2 * group + line % group) * 2 + k % 2;
}

// The layout of a product of a weight [N,K] that keeps so many blocks: of the forward, or of the
// input gradient.
inline SparseLayout sparse_layout(SparsityPattern pattern, std::int64_t rows, std::int64_t columns,
                                  std::int64_t kept, bool transposed) {
  SparseLayout layout{.side = mask_block(pattern),
                      .lines = transposed ? columns : rows,
                      .depth = transposed ? rows : columns,
                      .kept = kept};
  if (pattern != SparsityPattern::kTwoOfFour) return layout;
  layout.side = kTwoOfFourLines;
  layout.kept = layout.panels();
  layout.is_two_of_four = true;
  return layout;
}

// That of a product with so many lines of this depth, whose index has so many elements.
inline SparseLayout sparse_layout_by_index(SparsityPattern pattern, std::int64_t lines,
                                           std::int64_t depth, std::int64_t index_size) {
  SparseLayout layout = sparse_layout(pattern, lines, depth, 0, false);
  if (!layout.is_two_of_four) layout.kept = index_size - layout.panels() - 1;
  return layout;
}

}  // namespace anabatic::spec
