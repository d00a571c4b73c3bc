// SPDX-License-Identifier: Apache-2.0
#include "plan/exchanges.h"

#include <algorithm>

#include "ops/ranks/exchange.h"

namespace anabatic::plan {
namespace {

// The first position from `begin` on whose node reads one of the values; the length of the order
// where there is none.
std::int32_t first_reader(const ir::Graph& graph, const std::vector<ir::NodeId>& order,
                          std::int32_t begin, const std::vector<ir::ValueId>& values) {
  for (auto position = static_cast<std::size_t>(begin); position < order.size(); ++position) {
    const std::vector<ir::ValueId>& inputs = graph.node(order[position]).inputs;
    if (std::ranges::find_first_of(inputs, values) != inputs.end())
      return static_cast<std::int32_t>(position);
  }
  return static_cast<std::int32_t>(order.size());
}

}  // namespace

std::vector<Exchange> find_exchanges(const ir::Graph& graph, const std::vector<ir::NodeId>& order,
                                     bool trivial) {
  std::vector<Exchange> exchanges;
  // Where the micro-batch ends.
  const auto end = static_cast<std::int32_t>(
      std::ranges::find_if(
          order, [&](ir::NodeId id) { return graph.node(id).tag.phase == ir::Phase::kUpdate; }) -
      order.begin());
  for (std::size_t i = 0; i < order.size(); ++i) {
    const ir::Node& node = graph.node(order[i]);
    if (!ops::is_exchange(node)) continue;
    const auto posted_at = static_cast<std::int32_t>(i);
    std::int32_t awaited_at = posted_at + 1;
    if (!trivial) awaited_at = first_reader(graph, order, awaited_at, node.outputs);
    if (!node.is_of_update()) awaited_at = std::min(awaited_at, end);
    exchanges.push_back({.node = order[i], .posted_at = posted_at, .awaited_at = awaited_at});
  }
  return exchanges;
}

}  // namespace anabatic::plan
