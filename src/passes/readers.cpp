// SPDX-License-Identifier: Apache-2.0
#include "passes/readers.h"

namespace anabatic::passes {

Readers::Readers(const ir::Graph& graph)
    : readers_(graph.values.size()), is_wanted_(graph.values.size(), false) {
  for (std::size_t i = 0; i < graph.nodes.size(); ++i)
    for (const ir::ValueId input : graph.nodes[i].inputs)
      readers_[index(input)].push_back(ir::NodeId{static_cast<std::uint32_t>(i)});
  for (const ir::ValueId output : graph.outputs) is_wanted_[index(output)] = true;
  for (const ir::State& state : graph.states) is_wanted_[index(state.after)] = true;
  if (graph.objective) is_wanted_[index(*graph.objective)] = true;
}

}  // namespace anabatic::passes
