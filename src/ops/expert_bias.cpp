// SPDX-License-Identifier: Apache-2.0
#include "ops/expert_bias.h"

#include "ops/build.h"
#include "ops/check.h"

namespace anabatic::ops {
namespace {

std::vector<TensorType> infer_expert_bias(ir::Types inputs, const spec::Attributes& attributes) {
  const Check check("expert_bias", inputs, attributes);
  const Operand x = check.floating(0, "x", 2), bias = check.wide(1, "bias", 2),
                weights = check.wide(2, "weights", 2), experts = check.i32(3, "experts", 2);
  check.same_dim(bias, 1, x, 1);
  check.same_dim(weights, 0, x, 0);
  check.same_shape(experts, weights);
  return {*x.type};
}

std::vector<TensorType> infer_expert_bias_router_gradient(ir::Types inputs,
                                                          const spec::Attributes& attributes) {
  const Check check("expert_bias_router_gradient", inputs, attributes);
  const Operand dy = check.floating(0, "dy", 2), bias = check.wide(1, "bias", 2),
                experts = check.i32(2, "experts", 2);
  check.same_dim(bias, 1, dy, 1);
  check.same_dim(experts, 0, dy, 0);
  return {with_dtype(*experts.type, bias.dtype())};
}

std::vector<TensorType> infer_expert_bias_weight_gradient(ir::Types inputs,
                                                          const spec::Attributes& attributes) {
  const Check check("expert_bias_weight_gradient", inputs, attributes, {"num_experts"});
  const Operand dy = check.floating(0, "dy", 2), weights = check.wide(1, "weights", 2),
                experts = check.i32(2, "experts", 2);
  check.same_dim(weights, 0, dy, 0);
  check.same_shape(experts, weights);
  return {typed(weights.dtype(), {check.positive_int("num_experts"), dy.dim(1)})};
}

ir::Gradients expert_bias_gradient(ir::GraphBuilder& builder, const ir::Node& node,
                                   OutputGradients of_outputs) {
  if (!of_outputs[0]) return ir::Gradients(node.inputs.size());
  const ir::ValueId dy = *of_outputs[0], bias = node.inputs[1], weights = node.inputs[2],
                    experts = node.inputs[3];
  const ir::ValueId dweights = builder.add1("expert_bias_router_gradient", {dy, bias, experts});
  const WeightPhase phase(builder);
  const ir::ValueId dbias = builder.add1("expert_bias_weight_gradient", {dy, weights, experts},
                                         {{"num_experts", builder.type(bias).dim(0)}});
  return {dy, dbias, dweights, std::nullopt};
}

// A multiply-add for each column of each chosen expert; `experts` is the last input of all three.
ir::Cost expert_bias_cost(ir::Types inputs, ir::Types outputs, const spec::Attributes&) {
  return streaming_cost(inputs, outputs,
                        product({2, inputs.back().num_elements(), inputs[0].dim(1)}));
}

}  // namespace

const ir::OpSchema kExpertBias{
    .name = "expert_bias",
    .min_inputs = 4,
    .max_inputs = 4,
    .signature = "(x [T,N], bias f32[E,N], weights f32[T,k], experts i32[T,k]) -> [T,N] like x",
    .infer = infer_expert_bias,
    .gradient = expert_bias_gradient,
    .cost = expert_bias_cost,
    .may_alias = ir::always<0>};

const ir::OpSchema kExpertBiasRouterGradient{
    .name = "expert_bias_router_gradient",
    .min_inputs = 3,
    .max_inputs = 3,
    .signature = "(dy [T,N], bias f32[E,N], experts i32[T,k]) -> f32[T,k]",
    .infer = infer_expert_bias_router_gradient,
    .cost = expert_bias_cost};

const ir::OpSchema kExpertBiasWeightGradient{
    .name = "expert_bias_weight_gradient",
    .min_inputs = 3,
    .max_inputs = 3,
    .signature = "(dy [T,N], weights f32[T,k], experts i32[T,k]) -> f32[E,N]",
    .infer = infer_expert_bias_weight_gradient,
    .cost = expert_bias_cost,
    .can_accumulate = true};

}  // namespace anabatic::ops
