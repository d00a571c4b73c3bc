// SPDX-License-Identifier: Apache-2.0
#include "passes/fuse_optimizer.h"

#include <array>
#include <map>
#include <string>

#include "ir/rewrite.h"
#include "tensor/panels.h"

namespace anabatic::passes {
namespace {

using ir::Graph;
using ir::Node;
using ir::ValueId;

constexpr std::size_t kNone = static_cast<std::size_t>(-1);

// Nodes that pack one value, by direction.
using Packings = std::array<std::size_t, 2>;

std::map<ValueId, Packings> find_packings(const Graph& graph) {
  std::map<ValueId, Packings> found;
  for (std::size_t i = 0; i < graph.nodes.size(); ++i) {
    const Node& node = graph.nodes[i];
    if (node.op->name != "pack" || node.tag.segment != intern("optimizer")) continue;
    const bool transposed = graph.value(node.outputs[0]).type.layout == panels_layout(true);
    Packings& packings = found.try_emplace(node.inputs[0], Packings{kNone, kNone}).first->second;
    if (packings[transposed] == kNone) packings[transposed] = i;
  }
  return found;
}

// Updates of slices (slice_optimizer.h): each writes its rows of the packing that the last one
// before the step left, and hands it on.
bool fuse_slices(Graph& graph, const std::map<ValueId, Packings>& packings,
                 const PassContext& context, std::vector<bool>& keep) {
  std::map<ValueId, ValueId> before;  // of states, by `after`
  for (const ir::State& state : graph.states) before[state.after] = state.before;
  std::map<ValueId, std::vector<std::size_t>> slices;  // of one parameter, by what they leave of it
  bool changed = false;
  for (std::size_t i = 0; i < graph.nodes.size(); ++i) {
    const Node& node = graph.nodes[i];
    if (node.op->name != "adamw_split" || !node.attributes.contains("first_row")) continue;
    std::vector<std::size_t> so_far = std::move(slices[node.inputs[0]]);
    so_far.push_back(i);
    const ValueId parameter = node.outputs[0];
    const std::vector<std::size_t>& chain = slices[parameter] = std::move(so_far);
    const auto found = packings.find(parameter);
    if (found == packings.end() || found->second[true] == kNone ||
        graph.value(parameter).type.layout != panels_layout(false))
      continue;
    const std::size_t pack = found->second[true];
    const ValueId last = graph.nodes[pack].outputs[0];
    if (!before.contains(last)) continue;
    ValueId packed = before.at(last);
    for (const std::size_t at : chain) {
      const auto writer = static_cast<ir::NodeId>(at);
      const ValueId next = at == i ? last : graph.add_value(graph.value(last).type, {}, writer);
      Node& slice = graph.nodes[at];
      slice.op = context.find_op("adamw_split_slice_pack_transposed");
      slice.inputs.push_back(packed);
      slice.outputs.push_back(next);
      packed = next;
    }
    graph.value(last).producer = static_cast<ir::NodeId>(i);
    graph.nodes[pack].outputs = {};
    keep[pack] = false;
    changed = true;
  }
  return changed;
}

bool run(Graph& graph, const PassContext& context) {
  const std::map<ValueId, Packings> packings = find_packings(graph);
  std::vector<bool> keep(graph.nodes.size(), true);
  bool changed = fuse_slices(graph, packings, context, keep);
  for (std::size_t i = 0; i < graph.nodes.size(); ++i) {
    Node& node = graph.nodes[i];
    const bool is_split = node.op->name == "adamw_split";
    if (node.op->name != "adamw" && !is_split) continue;
    if (node.attributes.contains("first_row")) continue;
    const auto found = packings.find(node.outputs[0]);
    if (found == packings.end()) continue;
    const auto [plain, transposed] = found->second;
    if (transposed == kNone) continue;
    const bool in_panels = graph.value(node.outputs[0]).type.layout == panels_layout(false);
    if (is_split ? !in_panels : plain == kNone && !in_panels) continue;
    const auto dtype_of = [&](std::size_t pack) {
      return graph.value(graph.nodes[pack].outputs[0]).type.dtype;
    };
    const DType dtype = dtype_of(transposed);
    if (plain != kNone && dtype_of(plain) != dtype) continue;
    node.op = context.find_op(is_split         ? "adamw_split_pack_transposed"
                              : plain != kNone ? "adamw_pack"
                                               : "adamw_pack_transposed");
    if (!is_split) node.attributes["dtype"] = std::string(to_string(dtype));
    // Scales of moments in 8 bits stay last.
    const std::ptrdiff_t num_scales =
        static_cast<std::ptrdiff_t>(node.outputs.size()) - (is_split ? 4 : 3);
    for (const std::size_t pack : {is_split ? kNone : plain, transposed}) {
      if (pack == kNone) continue;
      const ValueId packed = graph.nodes[pack].outputs[0];
      node.outputs.insert(node.outputs.end() - num_scales, packed);
      graph.value(packed).producer = static_cast<ir::NodeId>(i);
      graph.nodes[pack].outputs = {};
      keep[pack] = false;
    }
    changed = true;
  }
  if (changed) ir::keep_nodes(graph, keep);
  return changed;
}

}  // namespace

const Pass kFuseOptimizer{.name = "fuse_optimizer", .needs = {"updated"}, .run = run};

}  // namespace anabatic::passes
