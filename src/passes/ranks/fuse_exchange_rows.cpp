// SPDX-License-Identifier: Apache-2.0
#include "passes/ranks/fuse_exchange_rows.h"

#include <algorithm>
#include <vector>

#include "ir/op_schema.h"
#include "ir/rewrite.h"
#include "passes/readers.h"
#include "spec/attributes.h"

namespace anabatic::passes {
namespace {

using ir::Graph;
using ir::Node;
using ir::NodeId;
using ir::ValueId;

bool copies_rows(const Node& node) {
  return node.op->name == "permute" ||
         (node.op->name == "permute_gradient" && spec::get_int(node.attributes, "top_k") == 1);
}

// Whether `node` sends these rows as they lie.
bool sends(const Node& node, ValueId rows) {
  return node.op->name == "exchange_rows" && node.inputs.size() == 3 && node.inputs[0] == rows;
}

bool fuse_row_copy(Graph& graph, const Readers& readers, const Node& copy) {
  const ValueId rows = copy.outputs[0];
  if (readers.is_wanted(rows) || readers.of(rows).empty()) return false;
  if (!std::ranges::all_of(readers.of(rows),
                           [&](NodeId id) { return sends(graph.node(id), rows); }))
    return false;
  for (const NodeId id : readers.of(rows)) {
    Node& exchange = graph.node(id);
    exchange.inputs[0] = copy.inputs[0];
    exchange.inputs.push_back(copy.inputs[1]);
    exchange.attributes["top_k"] = copy.attributes.at("top_k");
  }
  return true;
}

bool fuse_exchange_rows(Graph& graph, const PassContext&) {
  const Readers readers(graph);
  std::vector<bool> keep(graph.nodes.size(), true);
  for (std::size_t i = 0; i < graph.nodes.size(); ++i)
    keep[i] = !copies_rows(graph.nodes[i]) || !fuse_row_copy(graph, readers, graph.nodes[i]);
  return ir::remove_nodes(graph, keep);
}

}  // namespace

const Pass kFuseExchangeRows{
    .name = "fuse_exchange_rows", .needs = {"precision_chosen"}, .run = fuse_exchange_rows};

}  // namespace anabatic::passes
