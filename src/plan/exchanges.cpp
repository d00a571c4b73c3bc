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
  for (std::size_t i = 0; i < order.size(); ++i) {
    const ir::Node& node = graph.node(order[i]);
    if (!ops::is_exchange(node)) continue;
    const auto posted_at = static_cast<std::int32_t>(i);
    exchanges.push_back(
        {.node = order[i],
         .posted_at = posted_at,
         .awaited_at =
             trivial ? posted_at + 1 : first_reader(graph, order, posted_at + 1, node.outputs)});
  }
  return exchanges;
}

}  // namespace anabatic::plan
