// SPDX-License-Identifier: Apache-2.0
#include "ops/norms/rms_norm.h"

#include "ops/build.h"
#include "ops/check.h"

namespace anabatic::ops {
namespace {

void check_rms_norm_inputs(const Check& check) {
  const Operand x = check.floating(0, "x", 2), weight = check.wide(1, "weight", 1);
  check.multiple(x, 1, weight.size(0), "the weight's width");
  check.non_negative("epsilon");
}

std::vector<TensorType> infer_rms_norm(ir::Types inputs, const spec::Attributes& attributes) {
  const Check check("rms_norm", inputs, attributes, {"epsilon"});
  check_rms_norm_inputs(check);
  return {inputs[0]};
}

std::vector<TensorType> infer_add_rms_norm(ir::Types inputs, const spec::Attributes& attributes) {
  const Check check("add_rms_norm", inputs, attributes, {"epsilon"});
  check_rms_norm_inputs(check);
  check.same_type(check.floating(2, "residual", 2), check.floating(0, "x", 2));
  return {inputs[0], inputs[0]};
}

std::vector<TensorType> infer_rms_norm_input_gradient(ir::Types inputs,
                                                      const spec::Attributes& attributes) {
  const Check check("rms_norm_input_gradient", inputs, attributes, {"epsilon"});
  check_rms_norm_inputs(check);
  const Operand dy = check.floating(2, "dy", 2);
  check.gradient_of(dy, check.floating(0, "x", 2));
  if (check.num_inputs() == 4) check.same_type(check.floating(3, "residual", 2), dy);
  return {*dy.type};
}

std::vector<TensorType> infer_rms_norm_weight_gradient(ir::Types inputs,
                                                       const spec::Attributes& attributes) {
  const Check check("rms_norm_weight_gradient", inputs, attributes, {"epsilon", "width"});
  const Operand x = check.floating(0, "x", 2);
  check.gradient_of(check.floating(1, "dy", 2), x);
  const std::int64_t width = check.positive_int("width");
  check.multiple(x, 1, width, "width");
  check.non_negative("epsilon");
  return {typed(wide_dtype(x.dtype()), {width})};
}

ir::Gradients rms_norm_gradient(ir::GraphBuilder& builder, const ir::Node& node,
                                OutputGradients of_outputs) {
  if (!of_outputs[0]) return ir::Gradients(2);
  const ir::ValueId x = node.inputs[0], weight = node.inputs[1], dy = *of_outputs[0];
  const ir::ValueId dx = builder.add1("rms_norm_input_gradient", {x, weight, dy}, node.attributes);
  spec::Attributes attributes = node.attributes;
  attributes["width"] = builder.type(weight).dim(0);
  const WeightPhase phase(builder);
  return {dx, builder.add1("rms_norm_weight_gradient", {x, dy}, std::move(attributes))};
}

ir::Cost rms_norm_weight_gradient_cost(ir::Types inputs, ir::Types outputs,
                                       const spec::Attributes&) {
  return streaming_cost(inputs, outputs, product({inputs[0].num_elements(), 5}));
}

}  // namespace

const ir::OpSchema kAddRmsNorm{
    .name = "add_rms_norm",
    .min_inputs = 3,
    .max_inputs = 3,
    .num_outputs = 2,
    .signature = "(x [T,G*W], weight f32[W], residual like x) -> sum like x, y like x",
    .infer = infer_add_rms_norm,
    .cost = cost_an_element<5>,
    .may_alias = ir::always<0, -1>};

const ir::OpSchema kRmsNorm{.name = "rms_norm",
                            .min_inputs = 2,
                            .max_inputs = 2,
                            .signature = "(x [T,G*W], weight f32[W]) -> like x",
                            .infer = infer_rms_norm,
                            .gradient = rms_norm_gradient,
                            .cost = cost_an_element<4>};

const ir::OpSchema kRmsNormInputGradient{
    .name = "rms_norm_input_gradient",
    .min_inputs = 3,
    .max_inputs = 4,
    .signature = "(x [T,G*W], weight f32[W], dy like x, residual? like x) -> like x",
    .infer = infer_rms_norm_input_gradient,
    .cost = cost_an_element<9>};

const ir::OpSchema kRmsNormWeightGradient{.name = "rms_norm_weight_gradient",
                                          .min_inputs = 2,
                                          .max_inputs = 2,
                                          .signature = "(x [T,G*W], dy like x) -> f32[W]",
                                          .infer = infer_rms_norm_weight_gradient,
                                          .cost = rms_norm_weight_gradient_cost,
                                          .can_accumulate = true};

}  // namespace anabatic::ops
