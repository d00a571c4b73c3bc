// SPDX-License-Identifier: Apache-2.0
#include "passes/accumulate_gradients.h"

#include <algorithm>

#include "base/error.h"
#include "passes/differentiate.h"

namespace anabatic::passes {
namespace {

using ir::Graph;
using ir::ValueId;

std::vector<ValueId> take_contributions(Graph& graph, std::string_view parameter) {
  std::vector<ValueId> contributions;
  while (const auto found = graph.find_output(contribution_name(parameter, contributions.size()))) {
    ANABATIC_CHECK(graph.node(graph.value(*found).producer).op->can_accumulate,
                   "[accumulate_gradients] a contribution to '{}' cannot accumulate", parameter);
    graph.outputs.erase(std::find(graph.outputs.begin(), graph.outputs.end(), *found));
    graph.value(*found).name = {};
    contributions.push_back(*found);
  }
  return contributions;
}

void accumulate(Graph& graph, const PassContext& context, Name parameter, const TensorType& type,
                const std::vector<ValueId>& contributions) {
  ir::GraphBuilder builder(graph, context.find_op);
  builder.set_tag(graph.node(graph.value(contributions.back()).producer).tag);
  const ValueId before = builder.state_of(parameter, ir::StateRole::kGradient, type);
  const std::size_t state = graph.states.size() - 1;
  std::vector<ValueId> inputs{before};
  inputs.insert(inputs.end(), contributions.begin(), contributions.end());
  const ValueId after = builder.add1("accumulate", std::move(inputs));
  graph.states[state].after = after;
  if (!context.options.with_update) builder.output(after, text(graph.states[state].name));
}

bool accumulate_gradients(Graph& graph, const PassContext& context) {
  struct Parameter {
    Name name;
    TensorType type;
  };
  std::vector<Parameter> parameters;  // a copy: states are added below
  for (const ir::State& state : graph.states)
    if (state.kind() == ir::StateKind::kParameter)
      parameters.push_back({state.name, graph.value(state.before).type});
  bool changed = false;
  for (const auto& [name, type] : parameters) {
    const std::vector<ValueId> contributions = take_contributions(graph, text(name));
    if (contributions.empty()) continue;
    accumulate(graph, context, name, type, contributions);
    changed = true;
  }
  return changed;
}

}  // namespace

const Pass kAccumulateGradients{.name = "accumulate_gradients",
                                .needs = {"differentiated"},
                                .establishes = {"gradients_accumulated"},
                                .required = true,
                                .run = accumulate_gradients};

}  // namespace anabatic::passes
