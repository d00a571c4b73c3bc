// SPDX-License-Identifier: Apache-2.0
#include "ops/ranks/reshape.h"

#include "base/error.h"
#include "ops/build.h"
#include "ops/check.h"

namespace anabatic::ops {
namespace {

std::vector<TensorType> infer_reshape(ir::Types inputs, const spec::Attributes& attributes) {
  const Check check("reshape", inputs, attributes, {"width"});
  const Operand x = check.floating_or_i32(0, "x");
  check.row_major(x);
  const std::int64_t width = check.positive_int("width"), size = x.type->num_elements();
  if (size % width != 0)
    check.fail(fmt::format("expected rows of {} elements, got {}", width, to_string(*x.type)));
  return {typed(x.dtype(), {size / width, width})};
}

ir::Gradients reshape_gradient(ir::GraphBuilder& builder, const ir::Node& node,
                               OutputGradients of_outputs) {
  if (!of_outputs[0]) return {std::nullopt};
  const TensorType& x = builder.type(node.inputs[0]);
  ANABATIC_REQUIRE(x.ndim() == 2, "[reshape] expected a matrix to differentiate, got {}",
                   to_string(x));
  return {builder.add1("reshape", {*of_outputs[0]}, {{"width", x.dim(1)}})};
}

}  // namespace

const ir::OpSchema kReshape{.name = "reshape",
                            .min_inputs = 1,
                            .max_inputs = 1,
                            .signature = "(x any) -> [elements / width, width] like x",
                            .infer = infer_reshape,
                            .gradient = reshape_gradient,
                            .cost = copy_cost};

}  // namespace anabatic::ops
