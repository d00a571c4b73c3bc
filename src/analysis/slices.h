// SPDX-License-Identifier: Apache-2.0
// Which calls of a graph may be cut into slices (ir::OpSchema::most_slices), and what they become.
// The pass `slice_calls` builds them and the memory planner prices them. Read-only.
#pragma once
#include <cstdint>
#include <string>
#include <vector>

#include "ir/graph.h"

namespace anabatic::analysis {

struct SliceableCall {
  ir::NodeId node{};
  // Nodes `pack` of phase recompute that only it reads. A cut call reads their inputs instead, and
  // packs a part at a time itself: panels that the forward reads, or to int8 a parameter in rows.
  std::vector<ir::NodeId> packs{};
};

// Calls of one op and segment in all layers, which are cut in the same way.
struct SliceableKind {
  std::string key{};      // "SEGMENT.OP"
  std::int64_t most = 1;  // slices of each
  std::vector<SliceableCall> calls{};
};

// In the order of their first calls. Calls that read a whole packing that is stored anyway are not
// included. Linear in nodes.
std::vector<SliceableKind> sliceable_kinds(const ir::Graph& graph);

// The node of a call that is cut.
ir::Node sliced(const ir::Graph& graph, const SliceableCall& call, std::int64_t slices);

}  // namespace anabatic::analysis
