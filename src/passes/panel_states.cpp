// SPDX-License-Identifier: Apache-2.0
#include "passes/panel_states.h"

#include <algorithm>
#include <optional>
#include <string>

#include "base/error.h"
#include "ir/op_schema.h"
#include "passes/sparsity/sparse_products.h"
#include "tensor/panels.h"

namespace anabatic::passes {
namespace {

using ir::Graph;
using ir::Node;
using ir::State;
using ir::StateKind;
using ir::ValueId;

bool is_weight_gradient(const Node& node) {
  const spec::ProductForm* form = ir::product_form(node);
  return form != nullptr && form->is_plain() && form->role == spec::ProductRole::kWeightGradient;
}

bool is_plain_matrix(const TensorType& type) {
  return type.dtype == DType::kFloat32 && type.layout == kRowMajor &&
         (type.ndim() == 2 || type.ndim() == 3);
}

class Arranger {
 public:
  Arranger(Graph& graph, const PassContext& context)
      : graph_(graph), context_(context), builder_(graph, context.find_op) {}

  bool run() {
    bool changed = false;
    const std::size_t num_states = graph_.states.size();
    for (std::size_t i = 0; i < num_states; ++i) {
      const State state = graph_.states[i];
      if (state.kind() != StateKind::kParameter || state.after != state.before ||
          !is_plain_matrix(graph_.value(state.before).type))
        continue;
      const std::optional<Layout> given = given_layout(state.name);
      if (given && *given == kRowMajor) continue;
      if (!given && !is_eligible(state)) continue;
      arrange(state);
      changed = true;
    }
    return changed;
  }

 private:
  std::optional<Layout> given_layout(Name state) const {
    const HeldStates* held = context_.options.held_states;
    if (held == nullptr) return std::nullopt;
    const auto found = held->find(text(state));
    return found == held->end() ? std::nullopt : std::optional(found->second.layout);
  }

  const State* gradient_of(const State& parameter) const {
    return graph_.find_state(ir::StateRole::kGradient, parameter.name);
  }

  bool is_eligible(const State& parameter) const {
    if (!context_.options.with_update || is_read(parameter.before) || !is_packed(parameter.name) ||
        has_sparse_values(graph_, parameter.name))
      return false;
    const State* gradient = gradient_of(parameter);
    return gradient != nullptr ? takes_products_only(*gradient) : !parameter.is_trainable;
  }

  // Int8 packings are made of rows.
  bool is_packed(Name parameter) const {
    const bool has_int8 =
        std::any_of(graph_.states.begin(), graph_.states.end(), [&](const State& state) {
          return state.owner == parameter && is_int8_panels(graph_.value(state.before).type);
        });
    return !has_int8 &&
           std::any_of(graph_.states.begin(), graph_.states.end(), [&](const State& state) {
             return state.kind() == StateKind::kDerived && state.owner == parameter &&
                    graph_.value(state.before).type.layout == panels_layout(false);
           });
  }

  bool is_read(ValueId value) const {
    const auto reads = [&](const Node& node) {
      return std::find(node.inputs.begin(), node.inputs.end(), value) != node.inputs.end();
    };
    return std::any_of(graph_.nodes.begin(), graph_.nodes.end(), reads) ||
           std::find(graph_.outputs.begin(), graph_.outputs.end(), value) != graph_.outputs.end();
  }

  const Node* producer(ValueId value) const {
    const ir::NodeId id = graph_.value(value).producer;
    return id == ir::kNoNode ? nullptr : &graph_.node(id);
  }

  bool takes_products_only(const State& gradient) const {
    const Node* sum = producer(gradient.after);
    if (sum == nullptr || sum->op->name != "accumulate" || is_read(gradient.after)) return false;
    return std::all_of(sum->inputs.begin() + 1, sum->inputs.end(), [&](ValueId contribution) {
      const Node* node = producer(contribution);
      return node != nullptr && is_weight_gradient(*node);
    });
  }

  void put_in_panels(ValueId value) { graph_.value(value).type.layout = panels_layout(false); }

  void arrange(const State& parameter) {
    if (is_read(parameter.before)) read_rows(parameter);
    put_in_panels(parameter.before);
    if (const State* gradient = gradient_of(parameter)) {
      const Node& sum = *producer(gradient->after);
      for (const ValueId value : sum.inputs) {
        put_in_panels(value);
        const ir::NodeId writer = graph_.value(value).producer;
        if (writer != ir::kNoNode)
          graph_.node(writer).attributes["layout"] = std::string(text(panels_layout(false)));
      }
      put_in_panels(sum.outputs[0]);
    }
    drop_equal_packing(parameter);
  }

  // An f32 packing is the parameter itself.
  void drop_equal_packing(const State& parameter) {
    const auto equal = [&](const State& state) {
      return state.kind() == StateKind::kDerived && state.owner == parameter.name && !state.grid &&
             graph_.value(state.before).type == graph_.value(parameter.before).type;
    };
    const auto found = std::find_if(graph_.states.begin(), graph_.states.end(), equal);
    if (found == graph_.states.end()) return;
    replace(found->before, parameter.before);
    graph_.states.erase(found);
  }

  void read_rows(const State& parameter) {
    const TensorType type = graph_.value(parameter.before).type;
    replace(parameter.before,
            builder_.state_of(parameter.name, ir::StateRole::kRowMajorCopy, type));
  }

  void replace(ValueId from, ValueId to) {
    for (Node& node : graph_.nodes) std::replace(node.inputs.begin(), node.inputs.end(), from, to);
  }

  Graph& graph_;
  const PassContext& context_;
  ir::GraphBuilder builder_;
};

bool arrange_panel_states(Graph& graph, const PassContext& context) {
  return Arranger(graph, context).run();
}

}  // namespace

const Pass kPanelStates{
    .name = "panel_states", .needs = {"precision_chosen"}, .run = arrange_panel_states};

}  // namespace anabatic::passes
