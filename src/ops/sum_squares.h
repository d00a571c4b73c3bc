// SPDX-License-Identifier: Apache-2.0
// The sum of squares of a gradient, in f64. Or of parts of several gradients:
//
//   sum_squares_of_parts(g0, g1, ...) {columns, column, parts, part} -> f64[n, columns]
//
// Row i is of g_i. `column` has the sums of the part that member `part` of `parts` owns
// (spec/shards.h), the other columns are zero. With a column for each rank, the sum of these
// tensors over the ranks has every element of a gradient once. Its bits do not depend on who
// squared a part.
#pragma once
#include "ir/op_schema.h"

namespace anabatic::ops {

extern const ir::OpSchema kSumSquares;
extern const ir::OpSchema kSumSquaresOfParts;

}  // namespace anabatic::ops
