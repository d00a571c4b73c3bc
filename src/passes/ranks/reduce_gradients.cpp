// SPDX-License-Identifier: Apache-2.0
#include "passes/ranks/reduce_gradients.h"

#include <algorithm>
#include <vector>

#include "ir/op_schema.h"
#include "ir/rewrite.h"
#include "ops/ranks/exchange.h"

namespace anabatic::passes {
namespace {

using ir::Graph;
using ir::ValueId;

// Returns the sum over these axes.
ValueId reduce(Graph& graph, const PassContext& context, ValueId gradient, spec::Axes axes) {
  ir::GraphBuilder builder(graph, context.find_op);
  builder.set_tag({.phase = ir::Phase::kBackwardWeight,
                   .layer = graph.node(graph.value(gradient).producer).tag.layer,
                   .segment = intern("optimizer")});
  const std::size_t num_nodes = graph.nodes.size();
  const ValueId sum =
      builder.add1("all_reduce", {gradient}, {{"group", ops::group_attribute(axes)}});
  for (std::size_t i = 0; i < num_nodes; ++i)
    std::ranges::replace(graph.nodes[i].inputs, gradient, sum);
  return sum;
}

bool reduce_gradients(Graph& graph, const PassContext& context) {
  if (!context.options.with_update) return false;
  bool changed = false;
  for (ir::State& state : graph.states) {
    if (state.role != ir::StateRole::kGradient) continue;
    const spec::Axes axes{spec::data_axis(graph.find_state(state.owner)->rows.is_whole())};
    if (context.options.mesh.size(axes) == 1) continue;
    state.after = reduce(graph, context, state.after, axes);
    changed = true;
  }
  if (changed) ir::sort_nodes(graph);
  return changed;
}

}  // namespace

const Pass kReduceGradients{
    .name = "reduce_gradients", .needs = {"updated"}, .required = true, .run = reduce_gradients};

}  // namespace anabatic::passes
