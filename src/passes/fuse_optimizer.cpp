// SPDX-License-Identifier: Apache-2.0
#include "passes/fuse_optimizer.h"

#include <fmt/core.h>

#include <array>
#include <map>
#include <string>

#include "ir/rewrite.h"
#include "ops/optimizer_step.h"
#include "ops/pack.h"
#include "ops/weights/fake_quantize.h"
#include "tensor/panels.h"

namespace anabatic::passes {
namespace {

using ir::Graph;
using ir::Node;
using ir::ValueId;
using spec::Packs;

constexpr std::size_t kNone = static_cast<std::size_t>(-1);

// Nodes that pack one value, by direction.
using Packings = std::array<std::size_t, 2>;

// Packings of int8 products: the second one is made from the first, which is made of the parameter.
void add_int8_packing(const Graph& graph, std::size_t i, std::map<ValueId, Packings>& found) {
  const Node& node = graph.nodes[i];
  const bool is_second = graph.value(node.inputs[0]).type.is_quantized();
  ValueId parameter = node.inputs[0];
  if (is_second) {
    const ir::NodeId first = graph.value(parameter).producer;
    if (first == ir::kNoNode || graph.node(first).op->name != "pack") return;
    parameter = graph.node(first).inputs[0];
  } else if (graph.value(node.outputs[0]).type.layout != panels_layout(false)) {
    return;
  }
  Packings& packings = found.try_emplace(parameter, Packings{kNone, kNone}).first->second;
  if (packings[is_second] == kNone) packings[is_second] = i;
}

std::map<ValueId, Packings> find_packings(const Graph& graph) {
  std::map<ValueId, Packings> found;
  for (std::size_t i = 0; i < graph.nodes.size(); ++i) {
    const Node& node = graph.nodes[i];
    if (node.op->name != "pack" || node.tag.segment != intern("optimizer") ||
        graph.value(node.outputs[0]).type.dtype == DType::kFloat16)
      continue;
    if (graph.value(node.outputs[0]).type.is_quantized()) {
      add_int8_packing(graph, i, found);
      continue;
    }
    const bool transposed = graph.value(node.outputs[0]).type.layout == panels_layout(true);
    Packings& packings = found.try_emplace(node.inputs[0], Packings{kNone, kNone}).first->second;
    if (packings[transposed] == kNone) packings[transposed] = i;
  }
  return found;
}

void set_packs(Node& update, Packs packs) {
  spec::OptimizerStep step = *ops::optimizer_step_of(update);
  step.packs = packs;
  update.attributes.merge(spec::to_attributes(step));
}

// Updates of slices (slice_optimizer.h): each writes its rows of the previous step's packing and
// passes it to the next slice.
bool fuse_slices(Graph& graph, const std::map<ValueId, Packings>& packings,
                 std::vector<bool>& keep) {
  std::map<ValueId, ValueId> before;  // of states, by `after`
  for (const ir::State& state : graph.states) before[state.after] = state.before;
  std::map<ValueId, std::vector<std::size_t>> slices;  // of a parameter, by their last output of it
  bool changed = false;
  for (std::size_t i = 0; i < graph.nodes.size(); ++i) {
    const Node& node = graph.nodes[i];
    const auto step = ops::optimizer_step_of(node);
    if (!step || !step->is_split || !step->is_slice || step->packs != Packs::kNone) continue;
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
      set_packs(slice, Packs::kTransposed);
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

spec::Attributes attributes_of(const Graph& graph, std::size_t pack) {
  return ops::packing_attributes(graph.value(graph.nodes[pack].outputs[0]).type);
}
std::string packed_dtype(const Graph& graph, std::size_t pack) {
  return spec::get_string(attributes_of(graph, pack), "dtype");
}

// Which of these packings the update that writes `parameter` may write itself.
Packs packs_of(const Graph& graph, const spec::OptimizerStep& step, ValueId parameter,
               const Packings& packings) {
  const auto [plain, transposed] = packings;
  if (transposed == kNone) return Packs::kNone;
  if (plain != kNone && packed_dtype(graph, plain) != packed_dtype(graph, transposed))
    return Packs::kNone;
  if (plain != kNone && !step.is_split) return Packs::kBoth;
  const bool in_panels = graph.value(parameter).type.layout == panels_layout(false);
  return in_panels ? Packs::kTransposed : Packs::kNone;
}

// Node `i` becomes one that writes these packings; the `pack` nodes are removed.
void fuse_packs(Graph& graph, std::size_t i, const Packings& packings, Packs packs,
                std::vector<bool>& keep) {
  Node& node = graph.nodes[i];
  const auto [plain, transposed] = packings;
  set_packs(node, packs);
  const spec::OptimizerStep step = *ops::optimizer_step_of(node);
  if (!step.is_split) node.attributes["dtype"] = packed_dtype(graph, transposed);
  auto place = node.outputs.begin() + static_cast<std::ptrdiff_t>(step.first_packing());
  for (const std::size_t pack : {packs == Packs::kBoth ? plain : kNone, transposed}) {
    if (pack == kNone) continue;
    const ValueId packed = graph.nodes[pack].outputs[0];
    place = node.outputs.insert(place, packed) + 1;
    graph.value(packed).producer = static_cast<ir::NodeId>(i);
    graph.nodes[pack].outputs = {};
    keep[pack] = false;
  }
}

// The first packing of a parameter in panels on a grid that the update can round to, and the second
// one made of it.
struct RoundedPackings {
  std::size_t first = kNone, second = kNone;
};

RoundedPackings find_rounded(const Graph& graph, ValueId parameter,
                             const std::map<ValueId, Packings>& packings) {
  if (graph.value(parameter).type.layout != panels_layout(false)) return {};
  for (std::size_t i = 0; i < graph.nodes.size(); ++i) {
    const Node& node = graph.nodes[i];
    if (node.op->name != ops::kFakeQuantize.name || node.inputs[0] != parameter ||
        graph.value(node.outputs[0]).type.layout != panels_layout(false))
      continue;
    const auto grid = weight_grid_from_string(spec::get_string(node.attributes, "grid"));
    const auto found = packings.find(node.outputs[0]);
    if (grid->group == ops::kGroupOfUpdate && found != packings.end() &&
        found->second[true] != kNone)
      return {i, found->second[true]};
  }
  return {};
}

// As fuse_packs, with both packings on the grid.
void fuse_rounded(Graph& graph, std::size_t i, const RoundedPackings& rounded,
                  std::vector<bool>& keep) {
  const spec::Attributes of_grid = graph.nodes[rounded.first].attributes;
  Packings packings;
  packings[false] = rounded.first;
  packings[true] = rounded.second;
  fuse_packs(graph, i, packings, Packs::kBoth, keep);
  for (const char* key : {"grid", "delay"})
    if (const auto found = of_grid.find(key); found != of_grid.end())
      graph.nodes[i].attributes.insert(*found);
}

// Why the packing that node `pack` makes is none of an update; first packings of int8 products
// alone.
std::string_view refusal_of(const Graph& graph, const Node& pack) {
  const ir::NodeId writer = graph.value(pack.inputs[0]).producer;
  const auto step =
      writer == ir::kNoNode ? std::nullopt : ops::optimizer_step_of(graph.node(writer));
  if (!step) return "it is not of the parameter itself";
  return step->is_slice ? "the update runs by slices" : "there is one packing";
}

void explain(const Graph& graph, std::vector<std::string>& lines) {
  for (const ir::State& state : graph.states) {
    if (state.role != ir::StateRole::kPacking || !is_int8_panels(graph.value(state.before).type))
      continue;
    const ir::NodeId writer = graph.value(state.after).producer;
    if (writer == ir::kNoNode || graph.node(writer).op->name != "pack") continue;
    lines.push_back(fmt::format("{}: packed after its update: {}", text(state.owner),
                                refusal_of(graph, graph.node(writer))));
  }
}

bool fuse_optimizer(Graph& graph, const PassContext& context) {
  const std::map<ValueId, Packings> packings = find_packings(graph);
  std::vector<bool> keep(graph.nodes.size(), true);
  bool changed = fuse_slices(graph, packings, keep);
  for (std::size_t i = 0; i < graph.nodes.size(); ++i) {
    const auto step = ops::optimizer_step_of(graph.nodes[i]);
    if (!step || step->is_slice || step->packs != Packs::kNone) continue;
    const ValueId parameter = graph.nodes[i].outputs[0];
    if (const RoundedPackings rounded = find_rounded(graph, parameter, packings);
        rounded.first != kNone) {
      fuse_rounded(graph, i, rounded, keep);
      changed = true;
      continue;
    }
    const auto found = packings.find(parameter);
    if (found == packings.end()) continue;
    const Packs packs = packs_of(graph, *step, parameter, found->second);
    if (packs == Packs::kNone) continue;
    fuse_packs(graph, i, found->second, packs, keep);
    changed = true;
  }
  if (changed) ir::keep_nodes(graph, keep);
  if (context.options.explanation != nullptr) explain(graph, *context.options.explanation);
  return changed;
}

}  // namespace

const Pass kFuseOptimizer{.name = "fuse_optimizer", .needs = {"updated"}, .run = fuse_optimizer};

}  // namespace anabatic::passes
