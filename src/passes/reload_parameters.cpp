// SPDX-License-Identifier: Apache-2.0
#include "passes/reload_parameters.h"

#include <algorithm>
#include <utility>

#include "ir/rewrite.h"

namespace anabatic::passes {
namespace {

using ir::Graph;
using ir::Node;
using ir::State;
using ir::ValueId;

// By value: whether it is a parameter that goes to disk.
std::vector<bool> parameters_on_disk(const Graph& graph, const PassContext& context) {
  std::vector<bool> result(graph.values.size(), false);
  for (const State& state : graph.states) {
    const bool is_result =
        std::find(graph.outputs.begin(), graph.outputs.end(), state.before) !=
            graph.outputs.end() ||
        std::find(graph.outputs.begin(), graph.outputs.end(), state.after) != graph.outputs.end();
    result[index(state.before)] = state.kind() == ir::StateKind::kParameter && !is_result &&
                                  context.options.on_disk->contains(text(state.name));
  }
  return result;
}

// Whether the node works on this input in place: then it needs the state itself.
bool updates(const Node& node, std::size_t input) {
  const ir::Aliases aliases = ir::must_alias(node);
  return std::find(aliases.begin(), aliases.end(), static_cast<int>(input)) != aliases.end();
}

ir::Phase phase_of_reload(ir::Phase reader) {
  const bool is_kept = reader == ir::Phase::kForward || reader == ir::Phase::kUpdate;
  return is_kept ? reader : ir::Phase::kRecompute;
}

bool reload_parameters(Graph& graph, const PassContext& context) {
  if (context.options.on_disk == nullptr || context.options.on_disk->empty()) return false;
  const std::vector<bool> is_on_disk = parameters_on_disk(graph, context);
  std::vector<Node> nodes = std::exchange(graph.nodes, {});
  ir::GraphBuilder builder(graph, context.find_op);
  bool is_changed = false;
  for (Node& node : nodes) {
    for (std::size_t i = 0; i < node.inputs.size() && node.op->name != "reload"; ++i) {
      const ValueId input = node.inputs[i];
      if (index(input) >= is_on_disk.size() || !is_on_disk[index(input)] || updates(node, i))
        continue;
      ir::Tag tag = node.tag;
      tag.phase = phase_of_reload(tag.phase);
      builder.set_tag(tag);
      node.inputs[i] = builder.add1("reload", {input});
      is_changed = true;
    }
    graph.nodes.push_back(std::move(node));
  }
  ir::drop_undefined_values(graph);
  return is_changed;
}

}  // namespace

const Pass kReloadParameters{
    .name = "reload_parameters", .required = true, .run = reload_parameters};

}  // namespace anabatic::passes
