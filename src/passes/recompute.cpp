// SPDX-License-Identifier: Apache-2.0
#include "passes/recompute.h"

#include <string>

#include "analysis/rebuild.h"
#include "ir/rewrite.h"

namespace anabatic::passes {
namespace {

using analysis::Rebuild;
using ir::Graph;
using ir::Node;
using ir::NodeId;
using ir::ValueId;

std::vector<bool> dropped_values(const Graph& graph, const analysis::Rebuilder& rebuilder,
                                 const std::set<std::string, std::less<>>& keys) {
  std::vector<bool> is_dropped(graph.values.size(), false);
  for (const analysis::SavedValue& saved : rebuilder.saved())
    if (keys.contains(saved.key)) is_dropped[index(saved.value)] = true;
  return is_dropped;
}

// Without gate and up among its outputs, where nobody reads them.
void stop_keeping_products(Graph& graph, const PassContext& context) {
  std::vector<bool> is_read(graph.values.size(), false);
  for (const Node& node : graph.nodes)
    for (const ValueId input : node.inputs) is_read[index(input)] = true;
  for (const ValueId output : graph.outputs) is_read[index(output)] = true;
  for (Node& node : graph.nodes) {
    constexpr std::string_view kSuffix = "_with_products";
    if (node.tag.phase != ir::Phase::kForward || !node.op->name.ends_with(kSuffix)) continue;
    if (is_read[index(node.outputs[1])] || is_read[index(node.outputs[2])]) continue;
    node.op = context.find_op(node.op->name.substr(0, node.op->name.size() - kSuffix.size()));
    node.outputs.resize(1);
  }
}

bool run(Graph& graph, const PassContext& context) {
  if (context.options.decisions == nullptr) return false;
  const analysis::Rebuilder rebuilder(graph);
  const std::vector<bool> is_dropped =
      dropped_values(graph, rebuilder, context.options.decisions->recompute);
  const std::vector<Rebuild> rebuilds = rebuilder.rebuilds(is_dropped);
  if (rebuilds.empty()) return false;

  std::vector<Node> nodes = std::move(graph.nodes);
  graph.nodes.clear();
  ir::GraphBuilder builder(graph, context.find_op);
  std::vector<ValueId> made(graph.values.size(), ir::kNoValue);  // by forward value
  const auto current = [&](ValueId value) {
    return made[index(value)] == ir::kNoValue ? value : made[index(value)];
  };
  auto next = rebuilds.begin();
  for (std::size_t i = 0; i < nodes.size(); ++i) {
    for (; next != rebuilds.end() && index(next->before) == i; ++next) {
      ir::Tag tag = nodes[index(next->of)].tag;
      tag.phase = ir::Phase::kRecompute;
      builder.set_tag(tag);
      std::vector<ValueId> inputs;
      for (const ValueId input : next->inputs) inputs.push_back(current(input));
      const std::vector<ValueId> outputs = builder.add(next->op, inputs, next->attributes);
      for (std::size_t o = 0; o < outputs.size(); ++o)
        if (ValueId& value = made[index(next->outputs[o])]; value == ir::kNoValue)
          value = outputs[o];
    }
    Node& node = nodes[i];
    if (node.tag.phase != ir::Phase::kForward && node.tag.phase != ir::Phase::kUpdate)
      for (ValueId& input : node.inputs)
        if (is_dropped[index(input)]) input = made[index(input)];
    graph.nodes.push_back(std::move(node));
  }
  stop_keeping_products(graph, context);
  ir::keep_nodes(graph, std::vector<bool>(graph.nodes.size(), true));
  return true;
}

}  // namespace

const Pass kRecompute{
    .name = "recompute", .needs = {"differentiated"}, .required = true, .run = run};

}  // namespace anabatic::passes
