// SPDX-License-Identifier: Apache-2.0
#include "plan/choice_prices.h"

#include "analysis/saved_form.h"
#include "ops/table.h"
#include "plan/offload.h"

namespace anabatic::plan {

ChoicePrices::ChoicePrices(const ir::Graph& graph, const analysis::ProductCodes& codes,
                           const spec::DeviceSpec& device, const OpEfficiency& efficiency)
    : graph_(graph),
      codes_(codes),
      device_(device),
      efficiency_(efficiency),
      rebuilds_(graph.nodes.size()) {}

double ChoicePrices::seconds(const analysis::Rebuild& rebuild,
                             const analysis::Treatments& treatments) {
  if (rebuild.from != spec::SavedForm::kWhole) return seconds_as_form(rebuild, treatments);
  if (rebuild.op == "activation" &&
      codes_.comes_with_gradient(rebuild.outputs[0], rebuild.inputs[0]))
    return activation_beside_gradient_seconds(graph_.value(rebuild.outputs[0]).type, device_);
  std::vector<Price>& prices = rebuilds_[index(rebuild.of)];
  for (const Price& price : prices)
    if (price.op == rebuild.op && price.outputs == rebuild.outputs) return price.seconds;
  const ir::OpSchema* of = graph_.node(rebuild.of).op;
  const ir::Node node{.op = of->name == rebuild.op ? of : ops::find_op(rebuild.op),
                      .attributes = analysis::attributes_of(rebuild, graph_.node(rebuild.of)),
                      .inputs = rebuild.inputs,
                      .outputs = rebuild.outputs,
                      .tag = {.phase = ir::Phase::kRecompute}};
  prices.push_back(
      {rebuild.op, rebuild.outputs, predicted_seconds(graph_, node, device_, efficiency_)});
  return prices.back().seconds;
}

double ChoicePrices::seconds_as_form(const analysis::Rebuild& rebuild,
                                     const analysis::Treatments& treatments) {
  const ir::ValueId value = rebuild.outputs[0];
  const TensorType& type = graph_.value(value).type;
  if (rebuild.from == spec::SavedForm::kDisk) return offload_seconds(type.num_bytes(), device_);
  // A product that quantises does so with both results. If the other one is recomputed, its int8
  // values have no reader.
  const double to = !codes_.are_left(value, treatments)
                        ? conversion(value, rebuild.from).to
                        : (codes_.has_dropped_beside(value, treatments) ? 2 : 1) *
                              codes_behind_product_seconds(type, device_, efficiency_);
  const double from = codes_.are_read(value, treatments)
                          ? codes_in_gradient_seconds(type, device_, efficiency_)
                          : conversion(value, rebuild.from).from;
  return to + from;
}

const ChoicePrices::Conversion& ChoicePrices::conversion(ir::ValueId value, spec::SavedForm form) {
  const auto [found, is_new] = conversions_.try_emplace({form, value}, Conversion{});
  if (!is_new) return found->second;
  const TensorType& type = graph_.value(value).type;
  ir::Graph graph;
  ir::GraphBuilder builder(graph, ops::find_op);
  const ir::ValueId x = builder.batch_input("x", type);
  const analysis::Conversion to = analysis::conversion_to(form),
                             back = analysis::conversion_from(form, type.dtype);
  builder.add(back.op, builder.add(to.op, {x}, to.attributes), back.attributes);
  return found->second = {predicted_seconds(graph, graph.nodes[0], device_, efficiency_),
                          predicted_seconds(graph, graph.nodes[1], device_, efficiency_)};
}

}  // namespace anabatic::plan
