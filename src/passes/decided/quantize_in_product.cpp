// SPDX-License-Identifier: Apache-2.0
#include "passes/decided/quantize_in_product.h"

#include <optional>

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

// The node that quantises the product, where nothing else reads it.
std::optional<NodeId> quantize_of(const Graph& graph, const Readers& readers, ValueId product) {
  if (!readers.has_only(product, 1)) return std::nullopt;
  const NodeId reader = readers.of(product).front();
  if (graph.node(reader).op->name != "quantize") return std::nullopt;
  return reader;
}

bool quantize_in_product(Graph& graph, const PassContext& context) {
  const Readers readers(graph);
  std::vector<bool> keep(graph.nodes.size(), true);
  for (std::size_t i = 0; i < graph.nodes.size(); ++i) {
    Node& node = graph.nodes[i];
    if (node.tag.phase != ir::Phase::kForward || !analysis::keeps_products(node)) continue;
    // By product; none of one that nothing reads.
    std::vector<std::optional<NodeId>> quantizes;
    std::optional<NodeId> one;
    bool are_only_quantized = true;
    for (auto product = node.outputs.begin() + 1; product != node.outputs.end(); ++product) {
      quantizes.push_back(quantize_of(graph, readers, *product));
      if (quantizes.back()) one = quantizes.back();
      are_only_quantized &= quantizes.back() || readers.has_only(*product, 0);
    }
    if (!one || !are_only_quantized) continue;
    const Node& quantize = graph.node(*one);
    const TensorType type = graph.value(quantize.outputs[0]).type;
    node.attributes["block"] = quantize.attributes.at("block");
    for (std::size_t p = 0; p < quantizes.size(); ++p) {
      if (!quantizes[p]) {
        node.outputs[1 + p] = graph.add_value(type, {}, NodeId{static_cast<std::uint32_t>(i)});
        continue;
      }
      node.outputs[1 + p] = graph.node(*quantizes[p]).outputs[0];
      keep[index(*quantizes[p])] = false;
    }
    spec::ProductForm form = *ir::product_form(node);
    form.keeps = spec::KeptProducts::kInt8;
    node.op = context.find_product(form);
  }
  return ir::remove_nodes(graph, keep);
}

}  // namespace

const Pass kQuantizeInProduct{.name = "quantize_in_product",
                              .needs = {"differentiated"},
                              .of_decisions = true,
                              .run = quantize_in_product};

}  // namespace anabatic::passes
