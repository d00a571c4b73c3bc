// SPDX-License-Identifier: Apache-2.0
// Where the rows of tokens go when ranks share the experts of a layer, and where they lie there.
//
//   dispatch_map(routes i32[G,E+1]) {member, rows, expected}
//       -> row_map i32[rows], slots i32[rows], offsets i32[L+1],
//          send_counts i32[G], receive_counts i32[G], needed i32[1]
//
// Row p of `routes` is what route_sort says in rank p of a group: expert e has the rows
// [routes[p,e], routes[p,e+1]) there. Rank m of the group holds the L = E / G experts from m·L on.
// This one is rank `member`. It sends its rows as route_sort has sorted them, send_counts[p] of
// them to rank p. It receives receive_counts[p] rows from each, sorted alike, at most `rows`
// together. What is computed with them is priced for `expected` rows.
//
// The first three outputs are what route_sort would say of the received rows as tokens that chose
// one local expert each. Beyond the received rows, row_map and slots have p at place p: they are
// permutations, so that every index is in range.
//
// `needed` is the most rows that any rank of the group is to receive. Where that is more than
// `rows`, the step cannot count, and has to run again with more room (train/ranks/expert_room.h).
// So that it still runs to its end, with finite numbers, each rank sends as many of its sorted rows
// to each other, and the first local expert takes all that come. `rows` has room for these.
#pragma once
#include "ir/op_schema.h"

namespace anabatic::ops {

extern const ir::OpSchema kDispatchMap;

}  // namespace anabatic::ops
