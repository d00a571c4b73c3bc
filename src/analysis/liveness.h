// SPDX-License-Identifier: Apache-2.0
// When values are alive in a given order of nodes. The memory planner and the peak estimate use it.
// Read-only.
#pragma once
#include <cstdint>
#include <span>
#include <vector>

#include "ir/graph.h"

namespace anabatic::analysis {

// A half-open span of positions in an order. Empty (begin == end) for values that the order does
// not use.
struct Lifetime {
  std::int32_t begin = 0, end = 0;
  bool operator==(const Lifetime&) const = default;
  bool empty() const { return begin == end; }
  bool overlaps(const Lifetime& other) const { return begin < other.end && other.begin < end; }
};

// The smallest span that contains both; an empty one is ignored.
Lifetime join(const Lifetime& a, const Lifetime& b);

// For each value: from its producer's position to one past its last reader's. Values without a
// producer in the order begin at 0; graph outputs end at order.size(). Nodes that are not in the
// order are ignored.
std::vector<Lifetime> liveness(const ir::Graph& graph, std::span<const ir::NodeId> order);

struct LiveBytes {
  Lifetime lifetime{};
  std::int64_t bytes = 0;
};

// The largest sum of bytes alive at one position: a lower bound for any placement.
std::int64_t peak_live_bytes(std::span<const LiveBytes> items);

}  // namespace anabatic::analysis
