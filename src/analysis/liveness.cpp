// SPDX-License-Identifier: Apache-2.0
#include "analysis/liveness.h"

#include <algorithm>

namespace anabatic::analysis {

Lifetime join(const Lifetime& a, const Lifetime& b) {
  if (a.empty()) return b;
  if (b.empty()) return a;
  return {std::min(a.begin, b.begin), std::max(a.end, b.end)};
}

std::vector<Lifetime> liveness(const ir::Graph& graph, std::span<const ir::NodeId> order) {
  std::vector<Lifetime> lifetimes(graph.values.size());
  for (std::size_t i = 0; i < order.size(); ++i) {
    const auto position = static_cast<std::int32_t>(i);
    const ir::Node& node = graph.node(order[i]);
    for (ir::ValueId output : node.outputs) lifetimes[index(output)] = {position, position + 1};
    for (ir::ValueId input : node.inputs) lifetimes[index(input)].end = position + 1;
  }
  for (ir::ValueId output : graph.outputs)
    lifetimes[index(output)].end = static_cast<std::int32_t>(order.size());
  return lifetimes;
}

std::int64_t peak_live_bytes(std::span<const LiveBytes> items) {
  std::int32_t length = 0;
  for (const LiveBytes& item : items) length = std::max(length, item.lifetime.end);
  std::vector<std::int64_t> change(static_cast<std::size_t>(length) + 1, 0);
  for (const LiveBytes& item : items) {
    if (item.lifetime.empty()) continue;
    change[static_cast<std::size_t>(item.lifetime.begin)] += item.bytes;
    change[static_cast<std::size_t>(item.lifetime.end)] -= item.bytes;
  }
  std::int64_t live = 0, peak = 0;
  for (std::int64_t delta : change) {
    live += delta;
    peak = std::max(peak, live);
  }
  return peak;
}

}  // namespace anabatic::analysis
