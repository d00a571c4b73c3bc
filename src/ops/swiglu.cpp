// SPDX-License-Identifier: Apache-2.0
#include "ops/swiglu.h"

#include "ops/build.h"
#include "ops/check.h"

namespace anabatic::ops {
namespace {

std::vector<TensorType> infer(ir::Types inputs, const spec::Attributes& attributes) {
  const Check check("swiglu", inputs, attributes);
  const Operand gate = check.floating(0, "gate", 2);
  check.same_type(check.floating(1, "up", 2), gate);
  return {*gate.type};
}

std::vector<TensorType> infer_gradient(ir::Types inputs, const spec::Attributes& attributes) {
  const Check check("swiglu_gradient", inputs, attributes);
  const Operand gate = check.floating(0, "gate", 2);
  check.same_type(check.floating(1, "up", 2), gate);
  check.same_type(check.floating(2, "dy", 2), gate);
  return {*gate.type, *gate.type};
}

ir::Gradients gradient(ir::GraphBuilder& builder, const ir::Node& node,
                       OutputGradients of_outputs) {
  if (!of_outputs[0]) return ir::Gradients(2);
  const auto d = builder.add("swiglu_gradient", {node.inputs[0], node.inputs[1], *of_outputs[0]});
  return {d[0], d[1]};
}

ir::Cost cost(ir::Types inputs, ir::Types outputs, const spec::Attributes&) {
  return elementwise_cost(inputs, outputs, 5);
}

ir::Cost gradient_cost(ir::Types inputs, ir::Types outputs, const spec::Attributes&) {
  return elementwise_cost(inputs, outputs, 11);
}

}  // namespace

const ir::OpSchema kSwiglu{.name = "swiglu",
                           .min_inputs = 2,
                           .max_inputs = 2,
                           .signature = "(gate [R,F], up [R,F]) -> like gate",
                           .infer = infer,
                           .gradient = gradient,
                           .cost = cost,
                           .may_alias = {0}};

const ir::OpSchema kSwigluGradient{.name = "swiglu_gradient",
                                   .min_inputs = 3,
                                   .max_inputs = 3,
                                   .num_outputs = 2,
                                   .signature = "(gate [R,F], up [R,F], dy [R,F]) -> dgate, dup",
                                   .infer = infer_gradient,
                                   .cost = gradient_cost,
                                   .may_alias = {0, 1}};

}  // namespace anabatic::ops
