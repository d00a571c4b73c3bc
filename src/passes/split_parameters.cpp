// SPDX-License-Identifier: Apache-2.0
#include "passes/split_parameters.h"

#include <algorithm>

#include "base/error.h"
#include "passes/sparsity/sparse_products.h"

namespace anabatic::passes {
namespace {

using ir::Graph;
using ir::Node;
using ir::State;
using ir::StateKind;
using ir::StateRole;
using ir::ValueId;

TensorType with_dtype(TensorType type, DType dtype) {
  type.dtype = dtype;
  return type;
}

class Splitter {
 public:
  Splitter(Graph& graph, const PassContext& context)
      : graph_(graph), options_(context.options), builder_(graph, context.find_op) {}

  bool run() {
    bool changed = false;
    std::vector<Name> parameters;  // a copy: states come and go below
    for (const State& state : graph_.states)
      if (state.role == StateRole::kParameter && state.after == state.before &&
          graph_.value(state.before).type.dtype == DType::kFloat32)
        parameters.push_back(state.name);
    for (const Name name : parameters) {
      const State& parameter = *graph_.find_state(name);
      const HeldState* held = held_state(name);
      if (held != nullptr ? held->role != StateRole::kUpper : !is_eligible(parameter)) continue;
      ANABATIC_CHECK(!is_read(parameter.before),
                     "[split_parameters] '{}' is kept as upper and lower 16 bits, but read as f32",
                     text(name));
      split(name);
      changed = true;
    }
    return changed;
  }

 private:
  // The state as another program over the same states holds it, or null.
  const HeldState* held_state(Name state) const {
    if (options_.held_states == nullptr) return nullptr;
    const auto found = options_.held_states->find(text(state));
    return found == options_.held_states->end() ? nullptr : &found->second;
  }

  bool is_eligible(const State& parameter) const {
    const bool is_updated = graph_.find_state(StateRole::kGradient, parameter.name) != nullptr;
    return options_.with_update && (is_updated || !parameter.is_trainable) &&
           copy_of(parameter) != nullptr && !is_read(parameter.before) &&
           !needs_all_bits(parameter.name) && !parameter.derived_grid() &&
           !has_sparse_values(graph_, parameter.name);
  }

  // Packings in int8 and in f32 are made of all 32 bits.
  bool needs_all_bits(Name parameter) const {
    return std::any_of(graph_.states.begin(), graph_.states.end(), [&](const State& state) {
      if (state.kind() != StateKind::kDerived || state.owner != parameter) return false;
      const TensorType& type = graph_.value(state.before).type;
      return is_int8_panels(type) || type.dtype == DType::kFloat32;
    });
  }

  // The copy that equals the parameter's upper 16 bits, in the same layout, or null.
  const State* copy_of(const State& parameter) const {
    const TensorType wanted = with_dtype(graph_.value(parameter.before).type, DType::kBFloat16);
    for (const State& state : graph_.states)
      if (state.kind() == StateKind::kDerived && state.owner == parameter.name &&
          state.after == state.before && graph_.value(state.before).type == wanted)
        return &state;
    return nullptr;
  }

  bool is_read(ValueId value) const {
    const auto reads = [&](const Node& node) {
      return std::find(node.inputs.begin(), node.inputs.end(), value) != node.inputs.end();
    };
    return std::any_of(graph_.nodes.begin(), graph_.nodes.end(), reads) ||
           std::find(graph_.outputs.begin(), graph_.outputs.end(), value) != graph_.outputs.end();
  }

  void split(Name name) {
    const ValueId parameter = graph_.find_state(name)->before;
    const State* copy = copy_of(*graph_.find_state(name));
    graph_.find_state(name)->role = StateRole::kUpper;
    graph_.value(parameter).type.dtype = DType::kBFloat16;
    if (copy != nullptr) {
      for (Node& node : graph_.nodes)
        std::replace(node.inputs.begin(), node.inputs.end(), copy->before, parameter);
      graph_.states.erase(graph_.states.begin() + (copy - graph_.states.data()));
    }
    if (options_.with_update && graph_.find_state(StateRole::kGradient, name) != nullptr)
      builder_.state_of(name, StateRole::kLower,
                        with_dtype(graph_.value(parameter).type, DType::kUInt16));
  }

  Graph& graph_;
  const PassOptions& options_;
  ir::GraphBuilder builder_;
};

bool split_parameters(Graph& graph, const PassContext& context) {
  return Splitter(graph, context).run();
}

}  // namespace

const Pass kSplitParameters{
    .name = "split_parameters", .needs = {"precision_chosen"}, .run = split_parameters};

}  // namespace anabatic::passes
