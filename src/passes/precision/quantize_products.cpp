// SPDX-License-Identifier: Apache-2.0
#include "passes/precision/quantize_products.h"

#include <algorithm>
#include <array>
#include <optional>
#include <string>

#include "ir/op_schema.h"
#include "passes/precision/product_units.h"
#include "tensor/panels.h"

namespace anabatic::passes {
namespace {

using ir::Graph;
using ir::Node;
using ir::State;
using ir::StateRole;
using ir::ValueId;

using enum spec::ProductRole;

constexpr std::size_t kWeight = 1;
constexpr std::array kRoles{kForward, kInputGradient, kWeightGradient};

class ProductQuantizer {
 public:
  ProductQuantizer(Graph& graph, const PassContext& context)
      : graph_(graph), builder_(graph, context.find_op), options_(context.options) {}

  bool run() {
    bool changed = false;
    std::vector<Name> parameters;  // a copy: states come and go below
    for (const State& state : graph_.states)
      if (state.kind() == ir::StateKind::kParameter) parameters.push_back(state.name);
    for (const Name parameter : parameters) {
      const std::string unit = unit_name(parameter);
      const State* copy = graph_.find_state(StateRole::kCopy, parameter);
      const bool may_be_copy = !graph_.find_state(parameter)->is_trainable;  // quantize_frozen
      if (copy == nullptr && !is_raised(unit) && !may_be_copy) continue;
      const std::vector<Node*> products = products_of(parameter, copy);
      if (products.empty()) {
        if (copy != nullptr) changed |= quantize_heads(parameter, copy->before);
        continue;
      }
      const std::string refusal = refusal_of(parameter, products);
      if (refusal.empty()) changed |= quantize(parameter, unit, products);
      explain(unit, refusal, what_of(parameter, unit));
    }
    return changed;
  }

 private:
  std::optional<spec::Precision> raised(std::string_view unit, spec::ProductRole role) const {
    return raised_precision(unit, role, options_.products);
  }
  bool is_raised(std::string_view unit) const {
    return std::ranges::any_of(
        kRoles, [&](spec::ProductRole role) { return raised(unit, role).has_value(); });
  }

  // Forward and input gradient. Those that are raised to f32 read the parameter itself.
  std::vector<Node*> products_of(Name parameter, const State* copy) {
    const ValueId whole = graph_.find_state(parameter)->before;
    std::vector<Node*> products;
    for (Node& node : graph_.nodes) {
      const spec::ProductForm* form = ir::product_form(node);
      if (form != nullptr && form->is_plain() && form->role != kWeightGradient &&
          (node.inputs[kWeight] == whole ||
           (copy != nullptr && node.inputs[kWeight] == copy->before)))
        products.push_back(&node);
    }
    return products;
  }

  // Why products of this weight stay bf16; empty where they do not, but for those that are raised.
  std::string refusal_of(Name parameter, const std::vector<Node*>& products) const {
    if (std::string refusal = int8_refusal_of_weight(graph_, *graph_.find_state(parameter));
        !refusal.empty())
      return refusal;
    for (const Node* node : products) {
      if (!is_plain_product(*node) || raised(unit_name(parameter), kForward)) continue;
      if (graph_.value(node->outputs[0]).type.dtype != DType::kBFloat16) return "its result is f32";
      if (std::string refusal = refusal_of_unit(*node); !refusal.empty()) return refusal;
    }
    return {};
  }
  std::string refusal_of_unit(const Node& node) const {
    return int8_refusal_of_units(place_of(graph_, node), options_.products);
  }

  // Why a head with its loss stays bf16.
  std::string refusal_of_head(Name parameter, const Node& node) const {
    if (!node.op->name.ends_with("_gradient")) return "it has no gradients";
    if (std::string refusal = int8_refusal_of_weight(graph_, *graph_.find_state(parameter));
        !refusal.empty())
      return refusal;
    if (raised(unit_name(parameter), kForward)) return fmt::format("its {}", kRaised);
    return refusal_of_unit(node);
  }

  void explain(std::string_view unit, const std::string& refusal, const std::string& what) const {
    if (options_.explanation == nullptr) return;
    options_.explanation->push_back(refusal.empty()
                                        ? fmt::format("{}: int8 products, fallback {}{}", unit,
                                                      options_.products.fallback, what)
                                        : fmt::format("{}: bf16 products: {}", unit, refusal));
  }

  // What else there is to say of a weight with int8 products.
  std::string what_of(Name parameter, std::string_view unit) const {
    std::string what;
    for (const spec::ProductRole role : kRoles)
      if (const auto precision = raised(unit, role))
        what += fmt::format("; {} in {}: its {}", to_string(role),
                            *precision == spec::Precision::kFp32 ? "fp32" : "bf16", kRaised);
    const auto is_packing = [&](const State& state) {
      return state.owner == parameter && is_int8_panels(graph_.value(state.before).type);
    };
    if (std::ranges::any_of(graph_.states, is_packing))
      what += "; the parameter stays f32 in rows, and its update is followed by packings";
    return what;
  }

  // Heads with their loss, which quantise the bf16 copy themselves.
  bool quantize_heads(Name parameter, ValueId weight) {
    bool changed = false;
    for (Node& node : graph_.nodes) {
      if (!node.op->name.starts_with("head_") || node.inputs[kWeight] != weight) continue;
      const std::string refusal = refusal_of_head(parameter, node);
      explain(unit_name(parameter), refusal, "");
      if (!refusal.empty()) continue;
      changed |= node.attributes.emplace("fallback", options_.products.fallback).second;
    }
    return changed;
  }

  bool quantize(Name parameter, std::string_view unit, const std::vector<Node*>& products) {
    bool changed = false;
    for (Node* node : products) {
      const bool is_forward = is_plain_product(*node);
      if (raised(unit, ir::product_form(*node)->role)) continue;
      node->inputs[kWeight] = packing(parameter, !is_forward);
      if (is_forward) node->attributes["fallback"] = options_.products.fallback;
      changed = true;
    }
    if (!raised(unit, kWeightGradient)) changed |= mark_weight_gradients(parameter);
    if (const State* copy = graph_.find_state(StateRole::kCopy, parameter);
        copy != nullptr && !is_read(copy->before))
      graph_.states.erase(graph_.states.begin() + (copy - graph_.states.data()));
    return changed;
  }

  ValueId packing(Name parameter, bool transposed) {
    const StateRole role = transposed ? StateRole::kPackingTransposed : StateRole::kPacking;
    if (const State* state = graph_.find_state(role, parameter)) return state->before;
    TensorType type =
        quantized(graph_.value(graph_.find_state(parameter)->before).type, int8_tile_format());
    type.layout = panels_layout(transposed);
    return builder_.state_of(parameter, role, type);
  }

  bool mark_weight_gradients(Name parameter) {
    const State* gradient = graph_.find_state(StateRole::kGradient, parameter);
    if (gradient == nullptr) return false;
    bool changed = false;
    const Node& sum = graph_.node(graph_.value(gradient->after).producer);
    for (std::size_t i = 1; i < sum.inputs.size(); ++i) {
      Node& node = graph_.node(graph_.value(sum.inputs[i]).producer);
      const spec::ProductForm* form = ir::product_form(node);
      if (form == nullptr || form->role != kWeightGradient) continue;
      const TensorType& x = graph_.value(node.inputs[0]).type;
      if (x.dtype == DType::kBFloat16 && x.dim(0) >= kLeastInt8Depth)
        changed |= node.attributes.emplace("fallback", options_.products.fallback).second;
    }
    return changed;
  }

  bool is_read(ValueId value) const {
    return std::ranges::any_of(graph_.nodes,
                               [&](const Node& node) {
                                 return std::ranges::find(node.inputs, value) != node.inputs.end();
                               }) ||
           std::ranges::find(graph_.outputs, value) != graph_.outputs.end();
  }

  Graph& graph_;
  ir::GraphBuilder builder_;
  const PassOptions& options_;
};

bool quantize_products(Graph& graph, const PassContext& context) {
  return context.options.precision == spec::Precision::kInt8 &&
         ProductQuantizer(graph, context).run();
}

}  // namespace

const Pass kQuantizeProducts{.name = "quantize_products",
                             .needs = {"precision_chosen"},
                             .required = true,
                             .run = quantize_products};

}  // namespace anabatic::passes
