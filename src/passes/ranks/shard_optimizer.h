// SPDX-License-Identifier: Apache-2.0
// Cuts updates over the ranks that sum a gradient (ZeRO stage 1; Rajbhandari et al., 2020): those
// of the data axis, and of the expert data axis where experts are cut (shard_experts). Each rank
// keeps the moments, and the lower 16 bits, of its own part of a parameter (spec/shards.h). It
// updates that part and gets the others from their ranks:
//
//   state %m "first_moment.w": f32[8,48,16]     state %m "first_moment.w.slice.1": f32[4,48,16]
//   %s = all_reduce(%g)                      →  %s = reduce_scatter(%g)
//   %p, ... = optimizer_step(%w, %s, %m, ...)   %q, ... = optimizer_step(%w, %s, %m, ...)
//                                                         {first_row=192}
//                                               %p = all_gather(%q)
//
// The norm is of parts too, each of which one rank squares in a column of its own, also where one
// rank has several leaves of a step (sum_leaves):
//
//   %a = sum_squares(%s)                        %t = sum_squares_of_parts(%s, ...)
//   %n = global_norm(%a, ...)                →  %u = all_reduce(%t)
//                                               %n = global_norm(%u)
//
// So for each element there is one rank that updates it, with the bits of one rank alone but for
// the order of the norm's sum in f64, which leaves fix. Parameters of fewer than kSmallestSharded
// elements, those with fewer panels than leaves, and those with moments in 8 bits are updated by
// all ranks alike.
//
// It runs after reduce_gradients, whose sums it takes. Graphs of the ranks differ in first_row, in
// `first`, and in the sizes of parts; their nodes are the same. Linear in nodes.
#pragma once
#include <cstdint>
#include <string_view>
#include <vector>

#include "passes/pass.h"

namespace anabatic::passes {

inline constexpr std::int64_t kSmallestSharded = 64 << 10;

// Outputs with the sums over all ranks, f64[parameters, leaves], and the parameter of each row.
inline constexpr std::string_view kSumsOfSquares = "sums_of_squares",
                                  kSumsOfSquaresOfExperts = "sums_of_squares.experts";
std::vector<Name> names_of_sums(const ir::Graph& graph, std::string_view output);

extern const Pass kShardOptimizer;

}  // namespace anabatic::passes
