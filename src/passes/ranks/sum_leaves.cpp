// SPDX-License-Identifier: Apache-2.0
#include "passes/ranks/sum_leaves.h"

#include <fmt/core.h>

#include <algorithm>
#include <vector>

#include "ir/op_schema.h"
#include "ir/rewrite.h"
#include "ops/accumulate.h"
#include "spec/step.h"

namespace anabatic::passes {
namespace {

using ir::Graph;
using ir::ValueId;

ValueId sum(Graph& graph, const PassContext& context, const ir::State& gradient) {
  ir::GraphBuilder builder(graph, context.find_op);
  const ValueId leaf = gradient.after;
  builder.set_tag({.phase = ir::Phase::kBackwardWeight,
                   .layer = graph.node(graph.value(leaf).producer).tag.layer,
                   .segment = intern("optimizer")});
  const std::int64_t leaves = context.options.leaves;
  std::vector<ValueId> inputs{leaf};
  for (std::int32_t level = 0; level < spec::num_levels(leaves); ++level)
    inputs.push_back(builder.state(
        fmt::format("{}.{}", spec::state_name(ir::StateRole::kLeafSum, text(gradient.owner)),
                    level),
        graph.value(leaf).type, ir::StateRole::kLeafSum, gradient.owner));
  const std::size_t num_nodes = graph.nodes.size();
  const ValueId sum = builder.add1(ops::kSumLeaves.name, std::move(inputs), {{"leaves", leaves}});
  for (std::size_t i = 0; i < num_nodes; ++i)
    std::ranges::replace(graph.nodes[i].inputs, leaf, sum);
  return sum;
}

bool sum_leaves(Graph& graph, const PassContext& context) {
  if (!context.options.with_update || context.options.leaves == 1) return false;
  bool changed = false;
  const std::size_t num_states = graph.states.size();
  for (std::size_t i = 0; i < num_states; ++i) {
    const ir::State state = graph.states[i];  // adding states moves them
    if (state.role != ir::StateRole::kGradient ||
        graph.node(graph.value(state.after).producer).op->name == ops::kSumLeaves.name)
      continue;
    graph.states[i].after = sum(graph, context, state);
    changed = true;
  }
  if (changed) ir::sort_nodes(graph);
  return changed;
}

}  // namespace

const Pass kSumLeaves{
    .name = "sum_leaves", .needs = {"updated"}, .required = true, .run = sum_leaves};

}  // namespace anabatic::passes
