// SPDX-License-Identifier: Apache-2.0
#include "passes/fuse_moe_permute.h"

#include <algorithm>
#include <array>
#include <string>

#include "ir/rewrite.h"
#include "passes/readers.h"

namespace anabatic::passes {
namespace {

using ir::Graph;
using ir::Node;
using ir::NodeId;
using ir::ValueId;

// Products whose first input may be gathered, and where the row map stands.
struct Product {
  std::string_view op;
  std::size_t row_map;
};
constexpr std::array<Product, 4> kProducts{{{"grouped_linear", 3},
                                            {"grouped_linear_swiglu", 4},
                                            {"grouped_linear_swiglu_with_products", 4},
                                            {"grouped_linear_weight_gradient", 3}}};

// Null where `node` does not read `rows` as an operand that may be gathered, and no other.
const Product* product_of(const Node& node, ValueId rows, ValueId row_map) {
  const auto* found = std::find_if(kProducts.begin(), kProducts.end(), [&](const Product& product) {
    return product.op == node.op->name;
  });
  if (found == kProducts.end() || node.inputs[0] != rows || node.attributes.contains("top_k") ||
      std::count(node.inputs.begin(), node.inputs.end(), rows) != 1)
    return nullptr;
  // Weights of rows brought their map along.
  if (node.inputs.size() > found->row_map && node.inputs[found->row_map] != row_map) return nullptr;
  return found;
}

bool fuse(Graph& graph, const Readers& readers, std::size_t permute) {
  const ValueId rows = graph.nodes[permute].outputs[0], x = graph.nodes[permute].inputs[0],
                row_map = graph.nodes[permute].inputs[1];
  const spec::Attribute top_k = graph.nodes[permute].attributes.at("top_k");
  if (readers.is_wanted(rows) || readers.of(rows).empty()) return false;
  for (const NodeId id : readers.of(rows))
    if (product_of(graph.node(id), rows, row_map) == nullptr) return false;
  for (const NodeId id : readers.of(rows)) {
    Node& node = graph.node(id);
    const std::size_t at = product_of(node, rows, row_map)->row_map;
    node.inputs[0] = x;
    if (node.inputs.size() == at) node.inputs.push_back(row_map);
    node.attributes["top_k"] = top_k;
    if (node.op->name == "grouped_linear_weight_gradient")
      node.attributes["gathered"] = std::string("x");
  }
  return true;
}

bool run(Graph& graph, const PassContext&) {
  const Readers readers(graph);
  std::vector<bool> keep(graph.nodes.size(), true);
  bool changed = false;
  for (std::size_t i = 0; i < graph.nodes.size(); ++i) {
    if (graph.nodes[i].op->name != "permute" || !fuse(graph, readers, i)) continue;
    keep[i] = false;
    changed = true;
  }
  if (changed) ir::keep_nodes(graph, keep);
  return changed;
}

}  // namespace

const Pass kFuseMoePermute{.name = "fuse_moe_permute", .needs = {"precision_chosen"}, .run = run};

}  // namespace anabatic::passes
