// SPDX-License-Identifier: Apache-2.0
#include "passes/pack_again.h"

#include <algorithm>
#include <string>

#include "ir/rewrite.h"
#include "ops/pack.h"
#include "tensor/panels.h"

namespace anabatic::passes {
namespace {

using ir::Graph;
using ir::Node;
using ir::State;
using ir::ValueId;

// The packing of the same weight that the forward reads, in panels of the same dtype or format;
// kNoValue if there is none.
ValueId first_packing(const Graph& graph, const State& packed) {
  const auto fits = [&](const State& state) {
    const TensorType& type = graph.value(state.before).type;
    return type.layout == panels_layout(false) &&
           type.dtype == graph.value(packed.before).type.dtype &&
           type.blocks == graph.value(packed.before).type.blocks && state.after == state.before;
  };
  for (const State& state : graph.states) {
    const bool is_same = state.kind() == ir::StateKind::kDerived ? state.owner == packed.owner
                                                                 : state.name == packed.owner;
    if (is_same && fits(state)) return state.before;
  }
  return ir::kNoValue;
}

// A parameter on disk has no packing in memory between its readers.
bool is_on_disk(const State& packed, const PassOptions& options) {
  return options.on_disk != nullptr && options.on_disk->contains(text(packed.owner));
}

bool pack_again(Graph& graph, const PassContext& context) {
  const PassOptions& options = context.options;
  std::vector<ValueId> source(graph.values.size(), ir::kNoValue);  // by second packing
  std::erase_if(graph.states, [&](const State& state) {
    const ValueId value = state.before;
    if (state.role != ir::StateRole::kPackingTransposed || state.after != value ||
        (options.pack_transposed && !is_on_disk(state, options)))
      return false;
    source[index(value)] = first_packing(graph, state);
    return source[index(value)] != ir::kNoValue;
  });
  if (std::all_of(source.begin(), source.end(),
                  [](ValueId value) { return value == ir::kNoValue; }))
    return false;

  std::vector<Node> nodes = std::move(graph.nodes);
  graph.nodes.clear();
  ir::GraphBuilder builder(graph, context.find_op);
  for (Node& node : nodes) {
    for (ValueId& input : node.inputs) {
      if (index(input) >= source.size() || source[index(input)] == ir::kNoValue) continue;
      ir::Tag tag = node.tag;
      tag.phase = ir::Phase::kRecompute;
      builder.set_tag(tag);
      input = builder.add1("pack", {source[index(input)]},
                           ops::packing_attributes(graph.value(input).type));
    }
    graph.nodes.push_back(std::move(node));
  }
  ir::drop_undefined_values(graph);
  return true;
}

}  // namespace

const Pass kPackAgain{.name = "pack_again", .needs = {"differentiated"}, .run = pack_again};

}  // namespace anabatic::passes
