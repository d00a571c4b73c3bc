// SPDX-License-Identifier: Apache-2.0
#include "ops/losses/load_balancing_loss.h"

#include <string>

#include "ops/build.h"
#include "ops/check.h"

namespace anabatic::ops {
namespace {

std::vector<TensorType> infer_load_balancing_loss(ir::Types inputs,
                                                  const spec::Attributes& attributes) {
  const Check check("load_balancing_loss", inputs, attributes, {"top_k"});
  if (check.num_inputs() % 2 != 1)
    check.fail("expected pairs of counts and sums after the scale, got " +
               std::to_string(check.num_inputs() - 1) + " inputs");
  check.wide(0, "scale", 0);
  const Operand first = check.wide(1, "counts", 1);
  for (int i = 2; i < check.num_inputs(); ++i)
    check.same_type(check.wide(i, i % 2 == 1 ? "counts" : "sums", 1), first);
  check.positive_int("top_k");
  return {typed(first.dtype(), {})};
}

std::vector<TensorType> infer_load_balancing_loss_gradient(ir::Types inputs,
                                                           const spec::Attributes& attributes) {
  const Check check("load_balancing_loss_gradient", inputs, attributes, {"top_k"});
  check.wide(0, "dloss", 0);
  check.wide(1, "scale", 0);
  const Operand first = check.wide(2, "counts", 1);
  for (int i = 3; i < check.num_inputs(); ++i) check.same_type(check.wide(i, "counts", 1), first);
  check.positive_int("top_k");
  return {*first.type};
}

// Counts are piecewise constant. All sums share one gradient.
ir::Gradients load_balancing_loss_gradient(ir::GraphBuilder& builder, const ir::Node& node,
                                           OutputGradients of_outputs) {
  ir::Gradients gradients(node.inputs.size());
  if (!of_outputs[0]) return gradients;
  std::vector<ir::ValueId> inputs{*of_outputs[0], node.inputs[0]};
  for (std::size_t i = 1; i < node.inputs.size(); i += 2) inputs.push_back(node.inputs[i]);
  const ir::ValueId dsums =
      builder.add1("load_balancing_loss_gradient", std::move(inputs), node.attributes);
  for (std::size_t i = 2; i < node.inputs.size(); i += 2) gradients[i] = dsums;
  return gradients;
}

ir::Cost load_balancing_loss_cost(ir::Types inputs, ir::Types outputs, const spec::Attributes&) {
  return streaming_cost(
      inputs, outputs,
      product({inputs.back().num_elements(), static_cast<std::int64_t>(inputs.size())}));
}

std::vector<TensorType> infer_sequence(ir::Types inputs, const spec::Attributes& attributes) {
  const Check check("sequence_balance_loss", inputs, attributes);
  check.wide(0, "scale", 0);
  const Operand probabilities = check.wide(1, "probabilities", 2);
  check.same_dim(check.i32(2, "experts", 2), 0, probabilities, 0);
  check.same_dim(check.i32(3, "documents", 1), 0, probabilities, 0);
  return {typed(probabilities.dtype(), {})};
}

std::vector<TensorType> infer_sequence_gradient(ir::Types inputs,
                                                const spec::Attributes& attributes) {
  const Check check("sequence_balance_loss_gradient", inputs, attributes, {"num_experts"});
  const DType dtype = check.wide(0, "dloss", 0).dtype();
  check.wide(1, "scale", 0);
  const Operand experts = check.i32(2, "experts", 2);
  check.same_dim(check.i32(3, "documents", 1), 0, experts, 0);
  return {typed(dtype, {experts.dim(0), check.positive_int("num_experts")})};
}

// Counts are piecewise constant, so the probabilities themselves need not be kept.
ir::Gradients sequence_gradient(ir::GraphBuilder& builder, const ir::Node& node,
                                OutputGradients of_outputs) {
  ir::Gradients gradients(node.inputs.size());
  if (!of_outputs[0]) return gradients;
  gradients[1] = builder.add1("sequence_balance_loss_gradient",
                              {*of_outputs[0], node.inputs[0], node.inputs[2], node.inputs[3]},
                              {{"num_experts", builder.type(node.inputs[1]).dim(1)}});
  return gradients;
}

ir::Cost sequence_cost(ir::Types inputs, ir::Types outputs, const spec::Attributes&) {
  return streaming_cost(inputs, outputs, inputs[1].num_elements());
}

}  // namespace

const ir::OpSchema kLoadBalancingLoss{
    .name = "load_balancing_loss",
    .min_inputs = 3,
    .max_inputs = -1,
    .signature = "(scale f32[], counts0 f32[E], sums0 f32[E], counts1, sums1, ...) -> f32[]",
    .infer = infer_load_balancing_loss,
    .gradient = load_balancing_loss_gradient,
    .cost = load_balancing_loss_cost};

const ir::OpSchema kLoadBalancingLossGradient{
    .name = "load_balancing_loss_gradient",
    .min_inputs = 3,
    .max_inputs = -1,
    .signature = "(dloss f32[], scale f32[], counts0 f32[E], counts1, ...) -> f32[E]",
    .infer = infer_load_balancing_loss_gradient,
    .cost = load_balancing_loss_cost};

const ir::OpSchema kSequenceBalanceLoss{
    .name = "sequence_balance_loss",
    .min_inputs = 4,
    .max_inputs = 4,
    .signature =
        "(scale f32[], probabilities f32[T,E], experts i32[T,k], documents i32[T]) -> f32[]",
    .infer = infer_sequence,
    .gradient = sequence_gradient,
    .cost = sequence_cost};

const ir::OpSchema kSequenceBalanceLossGradient{
    .name = "sequence_balance_loss_gradient",
    .min_inputs = 4,
    .max_inputs = 4,
    .signature =
        "(dloss f32[], scale f32[], experts i32[T,k], documents i32[T]) -> dprobabilities f32[T,E]",
    .infer = infer_sequence_gradient,
    .cost = cost_an_element<1>};

}  // namespace anabatic::ops
