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
      const bool has_format =
          format && (format->map != ElementMap::kFloat4 || type.ndim() == 3);  // experts alone
      if (type.is_quantized() || !(has_format || is_upper(name))) continue;
      const State* copy = graph_.find_state(StateRole::kCopy, name);
      const bool is_eligible = copy != nullptr && !is_read(graph_.find_state(name)->before) &&
                               is_weight_alone(copy->before);
      ANABATIC_CHECK(is_eligible || !has_format || !is_held(name),
                     "[quantize_frozen] '{}' is kept as {}, but not by products alone", text(name),
                     to_string(*format));
      if (!is_eligible) continue;
      const ValueId parameter = use_parameter(name);
      TensorType& kept = graph_.value(parameter).type;
      if (has_format) {
        kept = quantized(kept, *format);
      } else {
        kept.dtype = DType::kBFloat16;
        graph_.find_state(name)->role = StateRole::kUpper;
      }
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

  // Int8 products multiply what bf16 has of it, in this program or in another over the same states.
  bool is_upper(Name state) const {
    if (!is_held(state)) return options_.precision == spec::Precision::kInt8;
    const HeldState& held = options_.held_states->find(text(state))->second;
    return held.role == StateRole::kUpper && held.layout == kRowMajor;
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

  // In place of its copy.
  ValueId use_parameter(Name name) {
    const ValueId parameter = graph_.find_state(name)->before;
    const State* copy = graph_.find_state(StateRole::kCopy, name);
    for (Node& node : graph_.nodes) std::ranges::replace(node.inputs, copy->before, parameter);
    graph_.states.erase(graph_.states.begin() + (copy - graph_.states.data()));
    return parameter;
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
