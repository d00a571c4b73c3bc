// SPDX-License-Identifier: Apache-2.0
// Which calls of a graph may be cut into slices (ir::OpSchema::most_slices), and what they are
// then: what the pass `slice_calls` builds and what the memory planner prices. Read-only.
#pragma once
#include <cstdint>
#include <string>
#include <vector>

#include "ir/graph.h"

namespace anabatic::analysis {

struct SliceableCall {
  ir::NodeId node{};
  // Nodes `pack` of phase recompute that only it reads. Cut, it reads what they pack, and packs a
  // part at a time itself.
  std::vector<ir::NodeId> packs{};
};

// Calls of one op and segment in all layers, which are cut alike.
struct SliceableKind {
  std::string key{};      // "SEGMENT.OP"
  std::int64_t most = 1;  // slices of each
  std::vector<SliceableCall> calls{};
};

// In the order of their first calls. Calls that read a whole packing which stands anyway are not
// among them. Linear in nodes.
std::vector<SliceableKind> sliceable_kinds(const ir::Graph& graph);

// The call's node when it is cut.
ir::Node sliced(const ir::Graph& graph, const SliceableCall& call, std::int64_t slices);

}  // namespace anabatic::analysis
