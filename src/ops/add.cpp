// SPDX-License-Identifier: Apache-2.0
#include "ops/add.h"

#include "ops/build.h"
#include "ops/check.h"

namespace anabatic::ops {
namespace {

std::vector<TensorType> infer_add(ir::Types inputs, const spec::Attributes& attributes) {
  const Check check("add", inputs, attributes);
  const Operand a = check.floating(0, "a"), b = check.floating(1, "b");
  check.same_type(a, b);
  return {*a.type};
}

ir::Gradients add_gradient(ir::GraphBuilder&, const ir::Node&, OutputGradients of_outputs) {
  return {of_outputs[0], of_outputs[0]};
}

}  // namespace

const ir::OpSchema kAdd{.name = "add",
                        .min_inputs = 2,
                        .max_inputs = 2,
                        .signature = "(a any, b like a) -> like a",
                        .infer = infer_add,
                        .gradient = add_gradient,
                        .cost = cost_an_element<1>,
                        .may_alias = ir::always<0>};

}  // namespace anabatic::ops
