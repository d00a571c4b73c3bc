// SPDX-License-Identifier: Apache-2.0
#include "passes/decided/quantize_in_product.h"

#include <utility>

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

std::vector<NodeId> quantized_by(const Graph& graph) {
  std::vector<NodeId> result(graph.values.size(), ir::kNoNode);
  for (std::size_t i = 0; i < graph.nodes.size(); ++i)
    if (graph.nodes[i].op->name == "quantize")
      result[index(graph.nodes[i].inputs[0])] = NodeId{static_cast<std::uint32_t>(i)};
  return result;
}

// A node that quantises one of the products, where nothing else reads any of them.
NodeId only_quantize(const std::vector<ValueId>& products, const Readers& readers,
                     const std::vector<NodeId>& quantized_by) {
  NodeId one = ir::kNoNode;
  for (const ValueId product : products) {
    const NodeId by = quantized_by[index(product)];
    if (!readers.has_only(product, by != ir::kNoNode ? 1 : 0)) return ir::kNoNode;
    if (one == ir::kNoNode) one = by;
  }
  return one;
}

bool run(Graph& graph, const PassContext& context) {
  const Readers readers(graph);
  const std::vector<NodeId> quantizes = quantized_by(graph);
  std::vector<bool> keep(graph.nodes.size(), true);
  bool is_changed = false;
  for (std::size_t i = 0; i < graph.nodes.size(); ++i) {
    Node& node = graph.nodes[i];
    if (node.tag.phase != ir::Phase::kForward || !analysis::keeps_products(node)) continue;
    const std::vector<ValueId> products(node.outputs.begin() + 1, node.outputs.end());
    const NodeId one = only_quantize(products, readers, quantizes);
    if (one == ir::kNoNode) continue;
    const Node quantize = graph.node(one);
    std::vector<ValueId> outputs{node.outputs[0]};
    for (const ValueId product : products) {
      const NodeId by = quantizes[index(product)];
      outputs.push_back(by != ir::kNoNode
                            ? graph.node(by).outputs[0]
                            : graph.add_value(graph.value(quantize.outputs[0]).type, {},
                                              NodeId{static_cast<std::uint32_t>(i)}));
      if (by != ir::kNoNode) keep[index(by)] = false;
    }
    spec::ProductForm form = *ir::product_form(node);
    form.keeps = spec::KeptProducts::kInt8;
    node.op = context.find_product(form);
    node.attributes["block"] = quantize.attributes.at("block");
    node.outputs = std::move(outputs);
    is_changed = true;
  }
  if (is_changed) ir::keep_nodes(graph, keep);
  return is_changed;
}

}  // namespace

const Pass kQuantizeInProduct{
    .name = "quantize_in_product", .needs = {"differentiated"}, .run = run};

}  // namespace anabatic::passes
