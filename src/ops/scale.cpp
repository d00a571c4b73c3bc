// SPDX-License-Identifier: Apache-2.0
#include "ops/scale.h"

#include <string>

#include "ops/build.h"
#include "ops/check.h"

namespace anabatic::ops {
namespace {

std::vector<TensorType> infer_scale(ir::Types inputs, const spec::Attributes& attributes) {
  const Check check("scale", inputs, attributes, {"factor"});
  check.number("factor");
  return {*check.floating(0, "x").type};
}

std::vector<TensorType> infer_scale_by(ir::Types inputs, const spec::Attributes& attributes) {
  const Check check("scale_by", inputs, attributes);
  const Operand x = check.floating(0, "x"), factor = check.wide(1, "factor", 0);
  if (factor.dtype() != wide_dtype(x.dtype()))
    check.fail("expected factor to be " + std::string(to_string(wide_dtype(x.dtype()))) + ", got " +
               to_string(*factor.type));
  return {*x.type};
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
  const Operand dy = check.floating(1, "dy");
  check.gradient_of(dy, x);
  return {*dy.type};
}

ir::Gradients scale_gradient(ir::GraphBuilder& builder, const ir::Node& node,
                             OutputGradients of_outputs) {
  if (!of_outputs[0]) return {std::nullopt};
  return {builder.add1("scale", {*of_outputs[0]}, node.attributes)};
}

ir::Gradients clamp_gradient(ir::GraphBuilder& builder, const ir::Node& node,
                             OutputGradients of_outputs) {
  if (!of_outputs[0]) return {std::nullopt};
  return {builder.add1("clamp_gradient", {node.inputs[0], *of_outputs[0]}, node.attributes)};
}

// x [T,W] and gate [T,1], which are the first inputs of both ops.
Operand check_gated_rows(const Check& check) {
  const Operand x = check.floating(0, "x", 2), gate = check.wide(1, "gate", 2);
  if (gate.dtype() != wide_dtype(x.dtype()))
    check.fail("expected gate to be " + std::string(to_string(wide_dtype(x.dtype()))) + ", got " +
               to_string(*gate.type));
  check.same_dim(gate, 0, x, 0);
  check.size(gate, 1, 1);
  return x;
}

std::vector<TensorType> infer_gate(ir::Types inputs, const spec::Attributes& attributes) {
  return {*check_gated_rows(Check("gate_rows", inputs, attributes)).type};
}

std::vector<TensorType> infer_gate_gradient(ir::Types inputs, const spec::Attributes& attributes) {
  const Check check("gate_rows_gradient", inputs, attributes);
  const Operand x = check_gated_rows(check);
  const Operand dy = check.floating(2, "dy", 2);
  check.gradient_of(dy, x);
  return {*dy.type, inputs[1]};
}

ir::Gradients gate_gradient(ir::GraphBuilder& builder, const ir::Node& node,
                            OutputGradients of_outputs) {
  if (!of_outputs[0]) return ir::Gradients(2);
  const auto d =
      builder.add("gate_rows_gradient", {node.inputs[0], node.inputs[1], *of_outputs[0]});
  return {d[0], d[1]};
}

// The product with the sigmoid, and a multiply-add for the gate.
ir::Cost gate_gradient_cost(ir::Types inputs, ir::Types outputs, const spec::Attributes&) {
  return elementwise_cost(inputs, outputs, 3);
}

}  // namespace

const ir::OpSchema kClamp{.name = "clamp",
                          .min_inputs = 1,
                          .max_inputs = 1,
                          .signature = "(x any) -> like x",
                          .infer = infer_clamp,
                          .gradient = clamp_gradient,
                          .cost = cost_an_element<2>,
                          .may_alias = ir::always<0>};

const ir::OpSchema kClampGradient{.name = "clamp_gradient",
                                  .min_inputs = 2,
                                  .max_inputs = 2,
                                  .signature = "(x any, dy like x) -> like x",
                                  .infer = infer_clamp_gradient,
                                  .cost = cost_an_element<2>,
                                  .may_alias = ir::always<1>};

const ir::OpSchema kScale{.name = "scale",
                          .min_inputs = 1,
                          .max_inputs = 1,
                          .signature = "(x any) -> like x",
                          .infer = infer_scale,
                          .gradient = scale_gradient,
                          .cost = cost_an_element<1>,
                          .may_alias = ir::always<0>};

const ir::OpSchema kScaleBy{.name = "scale_by",
                            .min_inputs = 2,
                            .max_inputs = 2,
                            .signature = "(x any, factor f32[]) -> like x",
                            .infer = infer_scale_by,
                            .cost = cost_an_element<1>,
                            .may_alias = ir::always<0>};

const ir::OpSchema kGateRows{.name = "gate_rows",
                             .min_inputs = 2,
                             .max_inputs = 2,
                             .signature = "(x [T,W], gate f32[T,1]) -> like x",
                             .infer = infer_gate,
                             .gradient = gate_gradient,
                             .cost = cost_an_element<1>,
                             .may_alias = ir::always<0>};

const ir::OpSchema kGateRowsGradient{.name = "gate_rows_gradient",
                                     .min_inputs = 3,
                                     .max_inputs = 3,
                                     .num_outputs = 2,
                                     .signature =
                                         "(x [T,W], gate f32[T,1], dy like x) -> dx like x, dgate "
                                         "f32[T,1]",
                                     .infer = infer_gate_gradient,
                                     .cost = gate_gradient_cost,
                                     .may_alias = ir::always<2>};

}  // namespace anabatic::ops
