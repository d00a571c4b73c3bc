// SPDX-License-Identifier: Apache-2.0
// Ranks along the expert axis of the mesh share the experts of each layer: E / ep of them each. The
// rows of tokens go to the ranks of their experts, and what these compute comes back:
//
//   %map, %slots, %o = route_sort(%experts) {num_experts=E}
//   %r = permute(%x, %map) {top_k=k}
//   %h = grouped_linear(%r, %w, %o) ...
//   %y = unpermute(%h, %weights, %slots)
//
//   ->  %map, %slots, %o = route_sort(%experts) {num_experts=E}
//       %routes = exchange_rows(reshape(%o) to each)                   of all ranks
//       %m, %s, %lo, %send, %receive = dispatch_map(%routes)
//       %w1 = exchange_rows(permute(reshape(%weights), %map), %send, %receive)
//       %r = permute(exchange_rows(permute(%x, %map), %send, %receive), %m) {top_k=1}
//       %h = grouped_linear(%r, %w, %lo) ...                           of E / ep experts
//       %back = exchange_rows(unpermute(%h, %w1, %s), %receive, %send)
//       %y = permute_gradient(%back, %slots) {top_k=k}                 the sum over k rows
//
// So the experts see a layer of the received rows as tokens with one expert each, and every pass
// over MoE layers applies to it. The parameters that the products read become [E/ep, ...], with the
// rows that they hold of all. A rank has room for the most rows that it can get, T tokens of each
// of ep ranks with min(k, E/ep) rows each; or for PassOptions::expert_capacity times its even
// share, T·k. Then the rows that a layer needs are an output. Products compute only those that
// came.
//
// Equal bits of a forward's and an input gradient's rows where move_router_weight runs: each row is
// computed alone, and the k rows of a token are summed in one place, in their order. Without it the
// weighted rows are rounded before that sum.
//
// Linear in nodes. It runs first, so that everything else sees the graph of one rank.
#pragma once
#include <string_view>

#include "passes/pass.h"

namespace anabatic::passes {

// Begins the names of outputs i32[1], of which the layer ends them: the rows that a rank needs room
// for (ops/ranks/dispatch_map.h). Absent where there is always enough.
inline constexpr std::string_view kNeededRows = "needed_rows.";

extern const Pass kShardExperts;

}  // namespace anabatic::passes
