// SPDX-License-Identifier: Apache-2.0
#include "train/adaptive/product_calls.h"

#include <algorithm>
#include <map>

#include "ir/op_schema.h"
#include "passes/precision/product_units.h"
#include "spec/product.h"
#include "tensor/panels.h"

namespace anabatic::train {
namespace {

using ir::Graph;
using ir::Node;
using ir::ValueId;
using spec::ProductRole;

// The parameters that values belong to: as weights, and as gradients of them.
class Owners {
 public:
  explicit Owners(const Graph& graph) {
    for (const ir::State& state : graph.states) {
      const Name owner = state.owner != Name{} ? state.owner : state.name;
      if (is_weight(state)) weights_[state.before] = owner;
      if (state.role == ir::StateRole::kGradient) gradients_[state.after] = owner;
    }
    for (const Node& node : graph.nodes) {
      // Packings that a backward makes itself, and copies that come from disk.
      if (node.op->name == "pack" || node.op->name == "reload")
        if (const auto found = weights_.find(node.inputs[0]); found != weights_.end())
          for (const ValueId output : node.outputs) weights_.try_emplace(output, found->second);
      if (node.op->name != "accumulate" && !node.op->name.starts_with("optimizer_step")) continue;
      for (const ValueId output : node.outputs) {
        const auto found = gradients_.find(output);
        if (found == gradients_.end()) continue;
        for (const ValueId input : node.inputs) gradients_.try_emplace(input, found->second);
      }
    }
  }

  Name of_weight(ValueId value) const { return find(weights_, value); }
  Name of_gradient(ValueId value) const { return find(gradients_, value); }

 private:
  static bool is_weight(const ir::State& state) {
    return state.kind() == ir::StateKind::kParameter || state.role == ir::StateRole::kCopy ||
           state.role == ir::StateRole::kPacking || state.role == ir::StateRole::kPackingTransposed;
  }
  static Name find(const std::map<ValueId, Name>& owners, ValueId value) {
    const auto found = owners.find(value);
    return found != owners.end() ? found->second : Name{};
  }

  std::map<ValueId, Name> weights_, gradients_;
};

// What a value was before products widened it for themselves.
ValueId uncast(const Graph& graph, ValueId value) {
  for (ir::NodeId id;
       (id = graph.value(value).producer) != ir::kNoNode && graph.node(id).op->name == "cast";)
    value = graph.node(id).inputs[0];
  return value;
}

// Where the rows are that a weight at `input` multiplies: a gradient of several weights has each
// after its dy.
std::size_t rows_of(const spec::ProductForm& form, std::size_t input) {
  return form.has_several && form.role == ProductRole::kInputGradient ? input - 1 : 0;
}

}  // namespace

ProductCalls::ProductCalls(const lower::Compiled& compiled) {
  std::map<const Graph*, Owners> owners;
  std::map<Name, std::size_t> numbers;
  std::map<std::pair<ValueId, bool>, std::size_t> groups;  // by x, and whether rows are of experts
  const std::vector<lower::CallInfo> infos = lower::call_infos(compiled);
  for (std::size_t i = 0; i < infos.size(); ++i) {
    const lower::CallInfo& info = infos[i];
    const Node& node = *info.node;
    const Graph& graph = *info.graph;
    const spec::ProductForm* form = ir::product_form(node);
    const bool is_head = node.op->name.starts_with("head_loss");
    if ((form == nullptr && !is_head) || info.is_zero_fill) continue;
    const Owners& of = owners.try_emplace(&graph, graph).first->second;
    ProductCall call{.call = static_cast<std::int32_t>(i),
                     .action = info.action,
                     .role = is_head ? ProductRole::kForward : form->role,
                     .is_grouped = !is_head && form->is_grouped,
                     .is_head = is_head,
                     .is_int8 = node.attributes.contains("fallback") ||
                                node.attributes.contains(spec::kPackedFormat)};
    if (call.role == ProductRole::kWeightGradient) {
      for (std::size_t n = 0; n < node.outputs.size(); ++n) {
        const auto found = numbers.find(of.of_gradient(node.outputs[n]));
        if (found != numbers.end()) call.operands.push_back({found->second, 1 + n, 0});
      }
    } else {
      for (std::size_t n = 1; n < node.inputs.size(); ++n) {
        const Name parameter = of.of_weight(node.inputs[n]);
        const TensorType& type = graph.value(node.inputs[n]).type;
        if (parameter == Name{} || type.ndim() < 2) continue;
        call.is_int8 |= is_int8_panels(type);
        if (call.role == ProductRole::kForward) {
          const auto [found, is_new] = numbers.try_emplace(parameter, units_.size());
          const std::size_t group =
              groups.try_emplace({uncast(graph, node.inputs[0]), call.is_grouped}, found->second)
                  .first->second;
          if (is_new)
            units_.push_back({.name = passes::unit_name(parameter),
                              .parameter = parameter,
                              .rows = graph.value(node.outputs[0]).type.ndim() == 2
                                          ? graph.value(node.outputs[0]).type.dim(0)
                                          : graph.value(node.inputs[0]).type.dim(0),
                              .elements_a_row = type.dim(-1) * type.dim(-2),
                              .group = group,
                              .is_head = is_head});
        }
        const auto found = numbers.find(parameter);
        if (found != numbers.end())
          call.operands.push_back({found->second, n, is_head ? 0 : rows_of(*form, n)});
      }
    }
    for (const ProductOperand& operand : call.operands) {
      ProductUnit::Product& product = units_[operand.unit].product(call.role);
      product.is_there = true;
      product.is_int8 |= call.is_int8;
    }
    if (!call.operands.empty()) calls_.push_back(std::move(call));
  }
}

}  // namespace anabatic::train
