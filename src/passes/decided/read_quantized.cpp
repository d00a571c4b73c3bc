// SPDX-License-Identifier: Apache-2.0
#include "passes/decided/read_quantized.h"

#include <algorithm>

#include "analysis/rebuild.h"
#include "ir/rewrite.h"
#include "passes/readers.h"
#include "spec/product.h"

namespace anabatic::passes {
namespace {

using ir::Graph;
using ir::Node;
using ir::NodeId;
using ir::ValueId;

bool read_quantized(Graph& graph, const PassContext&) {
  const Readers readers(graph);
  const NodeId first = analysis::first_activation_gradient(graph);
  std::vector<bool> keep(graph.nodes.size(), true);
  for (std::size_t i = 0; i < graph.nodes.size(); ++i) {
    Node& node = graph.nodes[i];
    if (!analysis::is_activation_gradient(node) || i == index(first)) continue;
    const spec::ActivationGradientInputs at =
        spec::activation_gradient_inputs(node.attributes, ir::product_form(node)->is_grouped);
    const auto gate = node.inputs.begin() + at.operand(0), end = gate + at.num_operands;
    const auto producer = [&](ValueId value) { return graph.value(value).producer; };
    const bool reads_them = std::all_of(gate, end, [&](ValueId value) {
      return producer(value) != ir::kNoNode &&
             graph.node(producer(value)).op->name == "dequantize" && readers.has_only(value, 1);
    });
    if (!reads_them) continue;
    for (auto operand = gate; operand != end; ++operand) {
      const NodeId dequantize = producer(*operand);
      *operand = graph.node(dequantize).inputs[0];
      keep[index(dequantize)] = false;
    }
  }
  return ir::remove_nodes(graph, keep);
}

}  // namespace

const Pass kReadQuantized{.name = "read_quantized",
                          .needs = {"differentiated"},
                          .of_decisions = true,
                          .run = read_quantized};

}  // namespace anabatic::passes
