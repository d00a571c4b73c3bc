// SPDX-License-Identifier: Apache-2.0
// The sum of squares of a gradient, in f64; with a mask (spec/sparsity.h) of what is present. Or of
// parts of several gradients:
//
//   sum_squares_of_parts(g0, g1, ...) {columns, column, parts, part, count} -> f64[n, columns]
//
// Row i is of g_i. `count` columns from `column` on have the sums of as many of its `parts` from
// `part` on (spec/shards.h). The other columns are zero. Where each rank has columns of its own,
// the sum of these tensors over the ranks has every element of a gradient once. Its bits do not
// depend on who squared a part.
#pragma once
#include "ir/op_schema.h"

namespace anabatic::ops {

extern const ir::OpSchema kSumSquares;
extern const ir::OpSchema kSumSquaresOfParts;

}  // namespace anabatic::ops
