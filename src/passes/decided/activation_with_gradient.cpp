// SPDX-License-Identifier: Apache-2.0
#include "passes/decided/activation_with_gradient.h"

#include "analysis/rebuild.h"
#include "ir/rewrite.h"
#include "spec/product.h"

namespace anabatic::passes {
namespace {

using ir::Graph;
using ir::Node;
using ir::NodeId;
using ir::ValueId;

std::size_t gate_at(const Node& gradient) {
  return static_cast<std::size_t>(
      spec::activation_gradient_inputs(gradient.attributes, ir::product_form(gradient)->is_grouped)
          .operand(0));
}

bool makes(const Node& gradient, const Node& activation) {
  // gate, up, and the weights of rows where both have them.
  const std::vector<ValueId> read(
      gradient.inputs.begin() + static_cast<std::ptrdiff_t>(gate_at(gradient)),
      gradient.inputs.end());
  return read == activation.inputs && !gradient.attributes.contains("with_activation") &&
         spec::activation_of(gradient.attributes) == spec::activation_of(activation.attributes);
}

bool join_activation_with_gradient(Graph& graph, const PassContext&) {
  std::vector<NodeId> gradient_of(graph.values.size(), ir::kNoNode);  // by gate
  std::vector<bool> has_other_readers(graph.values.size(), false);
  for (std::size_t i = 0; i < graph.nodes.size(); ++i) {
    const Node& node = graph.nodes[i];
    if (analysis::is_activation_gradient(node))
      gradient_of[index(node.inputs[gate_at(node)])] = NodeId{static_cast<std::uint32_t>(i)};
    for (const ValueId input : node.inputs)
      if (node.tag.phase != ir::Phase::kBackwardWeight) has_other_readers[index(input)] = true;
  }
  std::vector<bool> keep(graph.nodes.size(), true);
  for (std::size_t i = 0; i < graph.nodes.size(); ++i) {
    const Node& activation = graph.nodes[i];
    if (activation.op->name != "activation" || activation.tag.phase != ir::Phase::kRecompute)
      continue;
    const NodeId id = gradient_of[index(activation.inputs[0])];
    if (id == ir::kNoNode || has_other_readers[index(activation.outputs[0])]) continue;
    Node& gradient = graph.nodes[index(id)];
    if (!makes(gradient, activation)) continue;
    gradient.attributes["with_activation"] = true;
    gradient.outputs.push_back(activation.outputs[0]);
    graph.value(activation.outputs[0]).producer = id;
    keep[i] = false;
  }
  if (!ir::remove_nodes(graph, keep)) return false;
  ir::sort_nodes(graph);
  return true;
}

}  // namespace

const Pass kActivationWithGradient{.name = "activation_with_gradient",
                                   .needs = {"differentiated"},
                                   .of_decisions = true,
                                   .run = join_activation_with_gradient};

}  // namespace anabatic::passes
