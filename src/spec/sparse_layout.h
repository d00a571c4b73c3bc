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
  std::int64_t side = 1, lines = 0, depth = 0, kept = 0;

  std::int64_t panels() const { return ceil_div(lines, side); }
  std::int64_t steps() const { return ceil_div(depth, side); }
  std::int64_t index_size() const { return panels() + 1 + kept; }
  std::int64_t block_size() const { return side * side; }
};

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
  return {.side = mask_block(pattern),
          .lines = transposed ? columns : rows,
          .depth = transposed ? rows : columns,
          .kept = kept};
}

}  // namespace anabatic::spec
