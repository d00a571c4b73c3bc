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

ir::Gradients gradient(ir::GraphBuilder& builder, const ir::Node& node,
                       OutputGradients of_outputs) {
  if (!of_outputs[0]) return {std::nullopt};
  return {builder.add1("scale", {*of_outputs[0]}, node.attributes)};
}

ir::Cost cost(ir::Types inputs, ir::Types outputs, const spec::Attributes&) {
  return elementwise_cost(inputs, outputs, 1);
}

}  // namespace

const ir::OpSchema kScale{.name = "scale",
                          .min_inputs = 1,
                          .max_inputs = 1,
                          .signature = "(x any) -> like x",
                          .infer = infer,
                          .gradient = gradient,
                          .cost = cost,
                          .may_alias = ir::always<0>};

}  // namespace anabatic::ops
