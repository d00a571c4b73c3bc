// SPDX-License-Identifier: Apache-2.0
#include "passes/precision/raise_products.h"

#include <algorithm>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "ir/op_schema.h"
#include "ir/rewrite.h"
#include "passes/precision/product_units.h"

namespace anabatic::passes {
namespace {

using ir::Graph;
using ir::Node;
using ir::NodeId;
using ir::State;
using ir::ValueId;
using spec::ProductRole;

class ProductRaiser {
 public:
  ProductRaiser(Graph& graph, const PassContext& context)
      : graph_(graph),
        find_op_(context.find_op),
        builder_(graph, context.find_op),
        options_(context.options.products) {}

  bool run() {
    find_gradients();
    std::vector<Node> nodes = std::exchange(graph_.nodes, {});
    for (Node& node : nodes) {
      if (is_in_f32(node))
        rewrite(std::move(node));
      else
        append(std::move(node));
    }
    if (changed_) drop_unread_copies();
    return changed_;
  }

 private:
  static bool is_head(const Node& node) { return node.op->name.starts_with("head_loss"); }

  // The parameters that values are contributions to the gradients of.
  void find_gradients() {
    for (const State& state : graph_.states) {
      if (state.role != ir::StateRole::kGradient) continue;
      const Node& sum = graph_.node(graph_.value(state.after).producer);
      for (std::size_t i = 1; i < sum.inputs.size(); ++i) gradients_[sum.inputs[i]] = state.owner;
    }
  }

  // The parameter that a product reads or contributes to.
  Name parameter_of(const Node& node, ProductRole role) const {
    if (role == ProductRole::kWeightGradient) {
      const auto found = gradients_.find(node.outputs[0]);
      return found != gradients_.end() ? found->second : Name{};
    }
    const State* state = weight_of(graph_, node);
    return state != nullptr ? state->name : Name{};
  }

  bool is_in_f32(const Node& node) const {
    const spec::ProductForm* form = ir::product_form(node);
    if (!is_head(node) && (form == nullptr || !form->is_plain())) return false;
    const ProductRole role = is_head(node) ? ProductRole::kForward : form->role;
    const Name parameter = parameter_of(node, role);
    return parameter != Name{} &&
           raised_precision(unit_name(parameter), role, options_) == spec::Precision::kFp32 &&
           graph_.value(node.inputs[0]).type.dtype != DType::kFloat32;
  }

  ValueId in_f32(ValueId value) {
    if (graph_.value(value).type.dtype == DType::kFloat32) return value;
    return builder_.add1("cast", {value}, cast_to(DType::kFloat32));
  }
  static spec::Attributes cast_to(DType dtype) {
    return {{"dtype", std::string(to_string(dtype))}, {"rounding", std::string("even")}};
  }

  void rewrite(Node node) {
    changed_ = true;
    builder_.set_tag(node.tag);
    const bool is_weight_gradient =
        !is_head(node) && ir::product_form(node)->role == ProductRole::kWeightGradient;
    node.inputs[1] = is_weight_gradient ? in_f32(node.inputs[1]) : weight_of(graph_, node)->before;
    node.inputs[0] = in_f32(node.inputs[0]);
    if (const auto found = node.attributes.find("output_dtype"); found != node.attributes.end())
      found->second = std::string(to_string(DType::kFloat32));
    std::vector<TensorType> inputs;
    for (const ValueId input : node.inputs) inputs.push_back(graph_.value(input).type);
    const std::vector<TensorType> types = node.op->infer(inputs, node.attributes);
    std::vector<std::pair<ValueId, ValueId>> rounded;  // results, and in f32
    for (std::size_t i = 0; i < types.size(); ++i) {
      if (types[i] == graph_.value(node.outputs[i]).type) continue;
      const ValueId whole = graph_.add_value(types[i], {}, ir::kNoNode);
      rounded.emplace_back(std::exchange(node.outputs[i], whole), whole);
    }
    const ir::Tag tag = node.tag;
    append(std::move(node));
    for (const auto& [result, whole] : rounded) {
      append({.op = find_op_("cast"),
              .attributes = cast_to(graph_.value(result).type.dtype),
              .inputs = {whole},
              .outputs = {result},
              .tag = tag});
    }
  }

  void append(Node node) {
    const auto id = static_cast<NodeId>(graph_.nodes.size());
    for (const ValueId output : node.outputs) graph_.value(output).producer = id;
    graph_.nodes.push_back(std::move(node));
  }

  void drop_unread_copies() {
    std::erase_if(graph_.states, [&](const State& state) {
      return state.role == ir::StateRole::kCopy && is_raised(state.owner) &&
             std::ranges::none_of(graph_.nodes, [&](const Node& node) {
               return std::ranges::find(node.inputs, state.before) != node.inputs.end();
             });
    });
    ir::drop_undefined_values(graph_);
  }
  bool is_raised(Name parameter) const {
    return std::ranges::any_of(options_.raised, [&](const spec::RaisedProduct& raised) {
      return raised.weight == unit_name(parameter);
    });
  }

  Graph& graph_;
  const ir::FindOp find_op_;
  ir::GraphBuilder builder_;
  const spec::ProductOptions& options_;
  std::map<ValueId, Name> gradients_;
  bool changed_ = false;
};

bool raise_products(Graph& graph, const PassContext& context) {
  const bool is_asked = std::ranges::any_of(
      context.options.products.raised,
      [](const spec::RaisedProduct& raised) { return raised.precision == spec::Precision::kFp32; });
  return is_asked && context.options.precision == spec::Precision::kInt8 &&
         ProductRaiser(graph, context).run();
}

}  // namespace

const Pass kRaiseProducts{.name = "raise_products",
                          .needs = {"precision_chosen"},
                          .required = true,
                          .run = raise_products};

}  // namespace anabatic::passes
