// SPDX-License-Identifier: Apache-2.0
#include "passes/precision/quantize_frozen.h"

#include <algorithm>

#include "base/error.h"
#include "ir/op_schema.h"

namespace anabatic::passes {
namespace {

using ir::Graph;
using ir::Node;
using ir::State;
using ir::StateRole;
using ir::ValueId;

class Quantizer {
 public:
  Quantizer(Graph& graph, const PassOptions& options) : graph_(graph), options_(options) {}

  bool run() {
    bool changed = false;
    std::vector<Name> frozen;  // a copy: states go below
    for (const State& state : graph_.states)
      if (state.role == StateRole::kParameter && !state.is_trainable) frozen.push_back(state.name);
    for (const Name name : frozen) {
      const std::optional<BlockFormat> format = format_of(name);
      const TensorType& type = graph_.value(graph_.find_state(name)->before).type;
      if (!format || type.is_quantized()) continue;
      if (format->map == ElementMap::kFloat4 && type.ndim() != 3) continue;  // experts alone
      const State* copy = graph_.find_state(StateRole::kCopy, name);
      const bool is_eligible = copy != nullptr && !is_read(graph_.find_state(name)->before) &&
                               is_weight_alone(copy->before);
      ANABATIC_CHECK(is_eligible || !is_held(name),
                     "[quantize_frozen] '{}' is kept as {}, but not by products alone", text(name),
                     to_string(*format));
      if (!is_eligible) continue;
      keep(name, *format);
      changed = true;
    }
    return changed;
  }

 private:
  bool is_held(Name state) const {
    return options_.held_states != nullptr && options_.held_states->contains(text(state));
  }
  std::optional<BlockFormat> format_of(Name state) const {
    if (!is_held(state)) return options_.frozen_format;
    return options_.held_states->find(text(state))->second.blocks;
  }

  bool is_read(ValueId value) const {
    const auto reads = [&](const Node& node) {
      return std::ranges::find(node.inputs, value) != node.inputs.end();
    };
    return std::ranges::any_of(graph_.nodes, reads) || is_output(value);
  }
  bool is_output(ValueId value) const {
    return std::ranges::find(graph_.outputs, value) != graph_.outputs.end();
  }

  // Whether only products that round their results to bf16 read it, as their weight.
  bool is_weight_alone(ValueId value) const {
    const auto is_its_product = [&](const Node& node) {
      const spec::ProductForm* form = ir::product_form(node);
      return form != nullptr && form->is_plain() && form->role == spec::ProductRole::kForward &&
             node.inputs[1] == value && std::ranges::count(node.inputs, value) == 1 &&
             graph_.value(node.outputs[0]).type.dtype == DType::kBFloat16;
    };
    return !is_output(value) && std::ranges::all_of(graph_.nodes, [&](const Node& node) {
      return std::ranges::find(node.inputs, value) == node.inputs.end() || is_its_product(node);
    });
  }

  void keep(Name name, const BlockFormat& format) {
    const ValueId parameter = graph_.find_state(name)->before;
    const State* copy = graph_.find_state(StateRole::kCopy, name);
    TensorType& type = graph_.value(parameter).type;
    type = quantized(type, format);
    for (Node& node : graph_.nodes) std::ranges::replace(node.inputs, copy->before, parameter);
    graph_.states.erase(graph_.states.begin() + (copy - graph_.states.data()));
  }

  Graph& graph_;
  const PassOptions& options_;
};

bool quantize_frozen(Graph& graph, const PassContext& context) {
  return Quantizer(graph, context.options).run();
}

}  // namespace

const Pass kQuantizeFrozen{.name = "quantize_frozen",
                           .needs = {"precision_chosen"},
                           .required = true,
                           .run = quantize_frozen};

}  // namespace anabatic::passes
