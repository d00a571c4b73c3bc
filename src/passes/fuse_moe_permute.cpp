// SPDX-License-Identifier: Apache-2.0
#include "passes/fuse_moe_permute.h"

#include <algorithm>
#include <string>

#include "ir/op_schema.h"
#include "ir/rewrite.h"
#include "passes/readers.h"
#include "spec/product_bias.h"

namespace anabatic::passes {
namespace {

using ir::Graph;
using ir::Node;
using ir::NodeId;
using ir::ValueId;

// Whether it is a product whose first input may be gathered.
bool takes_row_map(const Node& node) {
  const spec::ProductForm* form = ir::product_form(node);
  if (form == nullptr || !form->is_grouped || form->has_several || form->sums_squares) return false;
  return form->role != spec::ProductRole::kInputGradient &&
         form->keeps != spec::KeptProducts::kInt8;
}

// The input of such a product that is its row map.
std::size_t row_map_at(const Node& node) {
  if (!ir::product_form(node)->has_activation) return 3;
  return static_cast<std::size_t>(spec::activation_inputs(node.attributes).row_map());
}

// Its inputs but for biases, which come last.
std::size_t num_others(const Node& node) {
  return spec::without_biases(node.inputs, node.attributes).size();
}

// Whether `node` reads `rows` as an operand that may be gathered, and as no other.
bool may_gather(const Node& node, ValueId rows, ValueId row_map) {
  if (!takes_row_map(node) || node.inputs[0] != rows || node.attributes.contains("top_k") ||
      std::count(node.inputs.begin(), node.inputs.end(), rows) != 1)
    return false;
  // A product with weights of rows has a row map already.
  const std::size_t at = row_map_at(node);
  return num_others(node) <= at || node.inputs[at] == row_map;
}

bool fuse_permute(Graph& graph, const Readers& readers, std::size_t permute) {
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
    if (num_others(node) == at)
      node.inputs.insert(node.inputs.begin() + static_cast<std::ptrdiff_t>(at), row_map);
    node.attributes["top_k"] = top_k;
    if (ir::product_form(node)->role == spec::ProductRole::kWeightGradient)
      node.attributes["gathered"] = std::string("x");
  }
  return true;
}

bool fuse_moe_permute(Graph& graph, const PassContext&) {
  const Readers readers(graph);
  std::vector<bool> keep(graph.nodes.size(), true);
  for (std::size_t i = 0; i < graph.nodes.size(); ++i) {
    if (graph.nodes[i].op->name != "permute" || !fuse_permute(graph, readers, i)) continue;
    keep[i] = false;
  }
  return ir::remove_nodes(graph, keep);
}

}  // namespace

const Pass kFuseMoePermute{
    .name = "fuse_moe_permute", .needs = {"precision_chosen"}, .run = fuse_moe_permute};

}  // namespace anabatic::passes
