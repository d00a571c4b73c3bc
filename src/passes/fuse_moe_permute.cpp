// SPDX-License-Identifier: Apache-2.0
#include "passes/fuse_moe_permute.h"

#include <algorithm>
#include <array>
#include <string>

#include "ir/rewrite.h"
#include "passes/readers.h"
#include "spec/product.h"

namespace anabatic::passes {
namespace {

using ir::Graph;
using ir::Node;
using ir::NodeId;
using ir::ValueId;

// Products whose first input may be gathered.
constexpr std::array<std::string_view, 4> kProducts{"grouped_linear", "grouped_linear_activation",
                                                    "grouped_linear_activation_with_products",
                                                    "grouped_linear_weight_gradient"};

// The input of such a product that is its row map.
std::size_t row_map_at(const Node& node) {
  if (!node.attributes.contains("activation")) return 3;
  return static_cast<std::size_t>(spec::activation_inputs(node.attributes).row_map());
}

// Whether `node` reads `rows` as an operand that may be gathered, and as no other.
bool may_gather(const Node& node, ValueId rows, ValueId row_map) {
  if (std::find(kProducts.begin(), kProducts.end(), node.op->name) == kProducts.end() ||
      node.inputs[0] != rows || node.attributes.contains("top_k") ||
      std::count(node.inputs.begin(), node.inputs.end(), rows) != 1)
    return false;
  // Weights of rows brought their map along.
  const std::size_t at = row_map_at(node);
  return node.inputs.size() <= at || node.inputs[at] == row_map;
}

bool fuse(Graph& graph, const Readers& readers, std::size_t permute) {
  const ValueId rows = graph.nodes[permute].outputs[0], x = graph.nodes[permute].inputs[0],
                row_map = graph.nodes[permute].inputs[1];
  const spec::Attribute top_k = graph.nodes[permute].attributes.at("top_k");
  if (readers.is_wanted(rows) || readers.of(rows).empty()) return false;
  for (const NodeId id : readers.of(rows))
    if (!may_gather(graph.node(id), rows, row_map)) return false;
  for (const NodeId id : readers.of(rows)) {
    Node& node = graph.node(id);
    const std::size_t at = row_map_at(node);
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
