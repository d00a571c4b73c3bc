// SPDX-License-Identifier: Apache-2.0
// When values are alive in a given order of nodes: what the memory planner and the peak estimate
// build on. Read-only.
#pragma once
#include <cstdint>
#include <span>
#include <vector>

#include "ir/graph.h"

namespace anabatic::analysis {

// A half-open span of positions in an order. Empty (begin == end) for what the order never touches.
struct Lifetime {
  std::int32_t begin = 0, end = 0;
  bool operator==(const Lifetime&) const = default;
  bool empty() const { return begin == end; }
  bool overlaps(const Lifetime& other) const { return begin < other.end && other.begin < end; }
};

// The smallest span that holds both; an empty one counts for nothing.
Lifetime join(const Lifetime& a, const Lifetime& b);

// Per value: from its producer's position to one past its last reader's. Values without a producer
// in the order begin at 0; graph outputs end at order.size(). Nodes that the order leaves out count
// for nothing.
std::vector<Lifetime> liveness(const ir::Graph& graph, std::span<const ir::NodeId> order);

struct LiveBytes {
  Lifetime lifetime{};
  std::int64_t bytes = 0;
};

// The largest sum of bytes alive at one position: no placement needs less.
std::int64_t peak_live_bytes(std::span<const LiveBytes> items);

}  // namespace anabatic::analysis
