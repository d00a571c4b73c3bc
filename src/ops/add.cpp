// SPDX-License-Identifier: Apache-2.0
#include "ops/add.h"

#include "ops/build.h"
#include "ops/check.h"

namespace anabatic::ops {
namespace {

std::vector<TensorType> infer(ir::Types inputs, const spec::Attributes& attributes) {
  const Check check("add", inputs, attributes);
  const Operand a = check.floating(0, "a"), b = check.floating(1, "b");
  check.same_type(a, b);
  return {*a.type};
}

ir::Gradients gradient(ir::GraphBuilder&, const ir::Node&, OutputGradients of_outputs) {
  return {of_outputs[0], of_outputs[0]};
}

ir::Cost cost(ir::Types inputs, ir::Types outputs, const spec::Attributes&) {
  return elementwise_cost(inputs, outputs, 1);
}

}  // namespace

const ir::OpSchema kAdd{.name = "add",
                        .min_inputs = 2,
                        .max_inputs = 2,
                        .signature = "(a any, b like a) -> like a",
                        .infer = infer,
                        .gradient = gradient,
                        .cost = cost,
                        .may_alias = ir::always<0>};

}  // namespace anabatic::ops
