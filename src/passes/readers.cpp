// SPDX-License-Identifier: Apache-2.0
#include "passes/readers.h"

#include <numeric>

namespace anabatic::passes {

Readers::Readers(const ir::Graph& graph)
    : first_(graph.values.size() + 1, 0), is_wanted_(graph.values.size(), false) {
  for (const ir::Node& node : graph.nodes)
    for (const ir::ValueId input : node.inputs) ++first_[index(input) + 1];
  std::partial_sum(first_.begin(), first_.end(), first_.begin());
  readers_.resize(first_.back());
  std::vector<std::size_t> next = first_;
  for (std::size_t i = 0; i < graph.nodes.size(); ++i)
    for (const ir::ValueId input : graph.nodes[i].inputs)
      readers_[next[index(input)]++] = ir::NodeId{static_cast<std::uint32_t>(i)};
  for (const ir::ValueId output : graph.outputs) is_wanted_[index(output)] = true;
  for (const ir::State& state : graph.states) is_wanted_[index(state.after)] = true;
  if (graph.objective) is_wanted_[index(*graph.objective)] = true;
}

}  // namespace anabatic::passes
