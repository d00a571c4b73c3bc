// SPDX-License-Identifier: Apache-2.0
// Rows that ranks send each other, as many as the counts say: a ragged all-to-all. It gives
// [rows, W], in the order of the members: what each of them sent.
//
//   exchange_rows(x [N,W], send_counts i32[G], receive_counts i32[G], row_map? i32[S])
//       {group, rows, top_k?} -> [rows, W] like x
//
// Rows to send lie in x in the order of the members. With row_map and top_k, the p-th of them is
// row row_map[p] / top_k of x. Counts are values: every rank knows those of its peers before it
// posts.
//
// Output rows beyond the counts are undefined: `rows` is a bound that the counts seldom reach, and
// zeroes would cost more than the exchange. So whoever reads the output goes by the counts. Kernels
// are for a group of one, and write zeroes there.
#pragma once
#include "ir/op_schema.h"

namespace anabatic::ops {

extern const ir::OpSchema kExchangeRows;

}  // namespace anabatic::ops
