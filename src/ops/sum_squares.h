// SPDX-License-Identifier: Apache-2.0
// The sum of squares of a gradient, in f64. Or of parts of several gradients:
//
//   sum_squares_of_parts(g0, g1, ...) {parts, first, count} -> f64[n, parts]
//
// Row i is of g_i, column p of the part that rank p of `parts` owns (spec/shards.h). Columns
// [first, first + count) have their sums, the others are zero. So the sum of these tensors over the
// ranks has every element of a gradient once, and its bits do not depend on who computed a part.
#pragma once
#include "ir/op_schema.h"

namespace anabatic::ops {

extern const ir::OpSchema kSumSquares;
extern const ir::OpSchema kSumSquaresOfParts;

}  // namespace anabatic::ops
