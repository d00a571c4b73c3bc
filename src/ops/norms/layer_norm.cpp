// SPDX-License-Identifier: Apache-2.0
#include "ops/norms/layer_norm.h"

#include "ops/build.h"
#include "ops/check.h"

namespace anabatic::ops {
namespace {

// x [T,W] and a parameter of each of its columns.
Operand check_layer_norm_inputs(const Check& check) {
  const Operand x = check.floating(0, "x", 2);
  check.same_dim(check.wide(1, "weight", 1), 0, x, 1);
  check.non_negative("epsilon");
  return x;
}

std::vector<TensorType> infer_layer_norm(ir::Types inputs, const spec::Attributes& attributes) {
  const Check check("layer_norm", inputs, attributes, {"epsilon"});
  const Operand x = check_layer_norm_inputs(check);
  check.same_dim(check.wide(2, "bias", 1), 0, x, 1);
  return {inputs[0]};
}

std::vector<TensorType> infer_layer_norm_input_gradient(ir::Types inputs,
                                                        const spec::Attributes& attributes) {
  const Check check("layer_norm_input_gradient", inputs, attributes, {"epsilon"});
  const Operand x = check_layer_norm_inputs(check);
  const Operand dy = check.floating(2, "dy", 2);
  check.gradient_of(dy, x);
  return {*dy.type};
}

std::vector<TensorType> infer_layer_norm_weight_gradient(ir::Types inputs,
                                                         const spec::Attributes& attributes) {
  const Check check("layer_norm_weight_gradient", inputs, attributes, {"epsilon"});
  const Operand x = check.floating(0, "x", 2);
  check.gradient_of(check.floating(1, "dy", 2), x);
  check.non_negative("epsilon");
  const TensorType of_columns = typed(wide_dtype(x.dtype()), {x.size(1)});
  return {of_columns, of_columns};
}

ir::Gradients layer_norm_gradient(ir::GraphBuilder& builder, const ir::Node& node,
                                  OutputGradients of_outputs) {
  if (!of_outputs[0]) return ir::Gradients(3);
  const ir::ValueId x = node.inputs[0], weight = node.inputs[1], dy = *of_outputs[0];
  const ir::ValueId dx =
      builder.add1("layer_norm_input_gradient", {x, weight, dy}, node.attributes);
  const WeightPhase phase(builder);
  const auto of_columns = builder.add("layer_norm_weight_gradient", {x, dy}, node.attributes);
  return {dx, of_columns[0], of_columns[1]};
}

ir::Cost layer_norm_weight_gradient_cost(ir::Types inputs, ir::Types outputs,
                                         const spec::Attributes&) {
  return streaming_cost(inputs, outputs, product({inputs[0].num_elements(), 9}));
}

}  // namespace

const ir::OpSchema kLayerNorm{.name = "layer_norm",
                              .min_inputs = 3,
                              .max_inputs = 3,
                              .signature = "(x [T,W], weight f32[W], bias f32[W]) -> like x",
                              .infer = infer_layer_norm,
                              .gradient = layer_norm_gradient,
                              .cost = cost_an_element<7>};

const ir::OpSchema kLayerNormInputGradient{
    .name = "layer_norm_input_gradient",
    .min_inputs = 3,
    .max_inputs = 3,
    .signature = "(x [T,W], weight f32[W], dy like x) -> like x",
    .infer = infer_layer_norm_input_gradient,
    .cost = cost_an_element<15>};

const ir::OpSchema kLayerNormWeightGradient{
    .name = "layer_norm_weight_gradient",
    .min_inputs = 2,
    .max_inputs = 2,
    .num_outputs = 2,
    .signature = "(x [T,W], dy like x) -> dweight f32[W], dbias f32[W]",
    .infer = infer_layer_norm_weight_gradient,
    .cost = layer_norm_weight_gradient_cost,
    .can_accumulate = true};

}  // namespace anabatic::ops
