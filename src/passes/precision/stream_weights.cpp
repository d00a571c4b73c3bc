// SPDX-License-Identifier: Apache-2.0
#include "passes/precision/stream_weights.h"

#include <map>
#include <utility>
#include <vector>

#include "ir/rewrite.h"
#include "passes/derive.h"

namespace anabatic::passes {
namespace {

using ir::Graph;
using ir::Node;
using ir::State;
using ir::ValueId;

class WeightStreamer {
 public:
  WeightStreamer(Graph& graph, const PassContext& context)
      : graph_(graph), builder_(graph, context.find_op), options_(context.options) {}

  bool run() {
    for (const State& state : graph_.states)
      if (is_streamed(state)) streamed_.emplace(state.before, state);
    if (streamed_.empty()) return false;
    std::erase_if(graph_.states,
                  [&](const State& state) { return streamed_.contains(state.before); });
    std::vector<Node> nodes = std::exchange(graph_.nodes, {});
    for (Node& node : nodes) {
      for (ValueId& input : node.inputs) input = made(input, node.tag);
      graph_.nodes.push_back(std::move(node));
    }
    ir::drop_undefined_values(graph_);
    return true;
  }

 private:
  bool is_streamed(const State& state) const {
    if (state.kind() != ir::StateKind::kDerived || state.after != state.before ||
        is_sparse_index(state) || is_sparse_values(state))
      return false;
    if (!options_.streams_weights)
      return state.role == ir::StateRole::kPacking ||
             state.role == ir::StateRole::kPackingTransposed;
    if (options_.held_states == nullptr) return true;
    const auto held = options_.held_states->find(text(state.name));
    const TensorType& type = graph_.value(state.before).type;
    return held == options_.held_states->end() || held->second.role != state.role ||
           held->second.layout != type.layout || held->second.blocks != type.blocks ||
           held->second.dtype != type.dtype;
  }

  // The value in place of this one, for a reader with that tag. The backward makes its own.
  ValueId made(ValueId input, ir::Tag tag) {
    const auto found = streamed_.find(input);
    if (found == streamed_.end()) return input;
    if (tag.phase != ir::Phase::kForward) tag.phase = ir::Phase::kRecompute;
    const auto [value, is_new] = values_.try_emplace({input, tag.phase}, ir::kNoValue);
    if (is_new) {
      builder_.set_tag(tag);
      value->second =
          add_derivation(builder_, graph_.find_state(found->second.owner)->before, found->second,
                         {.delay = options_.quantization.delay, .step = step_of(found->second)});
    }
    return value->second;
  }

  // How many updates there were, where a grid depends on it.
  ValueId step_of(const State& state) {
    constexpr const char* kStep = "step";
    if (!state.grid || options_.quantization.delay == 0) return ir::kNoValue;
    for (const ValueId input : graph_.step_inputs)
      if (text(graph_.value(input).name) == kStep) return input;
    return builder_.step_input(kStep, tensor_type(DType::kInt32, {}));
  }

  Graph& graph_;
  ir::GraphBuilder builder_;
  const PassOptions& options_;
  std::map<ValueId, State> streamed_;
  std::map<std::pair<ValueId, ir::Phase>, ValueId> values_;  // in place of them, by reader
};

bool stream_weights(Graph& graph, const PassContext& context) {
  const PassOptions& options = context.options;
  return (options.streams_weights || !options.keep_packings) &&
         WeightStreamer(graph, context).run();
}

}  // namespace

const Pass kStreamWeights{.name = "stream_weights",
                          .needs = {"precision_chosen"},
                          .required = true,
                          .run = stream_weights};

}  // namespace anabatic::passes
