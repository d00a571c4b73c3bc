// SPDX-License-Identifier: Apache-2.0
#include "ops/scale.h"

#include "ops/build.h"
#include "ops/check.h"

namespace anabatic::ops {
namespace {

std::vector<TensorType> infer(ir::Types inputs, const spec::Attributes& attributes) {
  const Check check("scale", inputs, attributes, {"factor"});
  check.number("factor");
  return {*check.floating(0, "x").type};
}

std::vector<TensorType> infer_clamp(ir::Types inputs, const spec::Attributes& attributes) {
  const Check check("clamp", inputs, attributes, {"limit"});
  check.non_negative("limit");
  return {*check.floating(0, "x").type};
}

std::vector<TensorType> infer_clamp_gradient(ir::Types inputs, const spec::Attributes& attributes) {
  const Check check("clamp_gradient", inputs, attributes, {"limit"});
  check.non_negative("limit");
  const Operand x = check.floating(0, "x");
  check.same_type(check.floating(1, "dy"), x);
  return {*x.type};
}

ir::Gradients gradient(ir::GraphBuilder& builder, const ir::Node& node,
                       OutputGradients of_outputs) {
  if (!of_outputs[0]) return {std::nullopt};
  return {builder.add1("scale", {*of_outputs[0]}, node.attributes)};
}

ir::Gradients clamp_gradient(ir::GraphBuilder& builder, const ir::Node& node,
                             OutputGradients of_outputs) {
  if (!of_outputs[0]) return {std::nullopt};
  return {builder.add1("clamp_gradient", {node.inputs[0], *of_outputs[0]}, node.attributes)};
}

ir::Cost cost(ir::Types inputs, ir::Types outputs, const spec::Attributes&) {
  return elementwise_cost(inputs, outputs, 1);
}

ir::Cost clamp_cost(ir::Types inputs, ir::Types outputs, const spec::Attributes&) {
  return elementwise_cost(inputs, outputs, 2);
}

}  // namespace

const ir::OpSchema kClamp{.name = "clamp",
                          .min_inputs = 1,
                          .max_inputs = 1,
                          .signature = "(x any) -> like x",
                          .infer = infer_clamp,
                          .gradient = clamp_gradient,
                          .cost = clamp_cost,
                          .may_alias = ir::always<0>};

const ir::OpSchema kClampGradient{.name = "clamp_gradient",
                                  .min_inputs = 2,
                                  .max_inputs = 2,
                                  .signature = "(x any, dy like x) -> like x",
                                  .infer = infer_clamp_gradient,
                                  .cost = clamp_cost,
                                  .may_alias = ir::always<1>};

const ir::OpSchema kScale{.name = "scale",
                          .min_inputs = 1,
                          .max_inputs = 1,
                          .signature = "(x any) -> like x",
                          .infer = infer,
                          .gradient = gradient,
                          .cost = cost,
                          .may_alias = ir::always<0>};

}  // namespace anabatic::ops
