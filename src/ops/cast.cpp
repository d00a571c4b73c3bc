// SPDX-License-Identifier: Apache-2.0
#include "ops/cast.h"

#include <string>

#include "ops/build.h"
#include "ops/check.h"

namespace anabatic::ops {
namespace {

std::vector<TensorType> infer(ir::Types inputs, const spec::Attributes& attributes) {
  const Check check("cast", inputs, attributes, {"dtype", "rounding"});
  const Operand x = check.floating(0, "x");
  const std::string& rounding = check.string("rounding");
  if (rounding != "even" && rounding != "half_away")
    check.fail("expected rounding 'even' or 'half_away', got '" + rounding + "'");
  return {with_dtype(*x.type, check.dtype("dtype"))};
}

ir::Gradients gradient(ir::GraphBuilder& builder, const ir::Node& node,
                       OutputGradients of_outputs) {
  if (!of_outputs[0]) return {std::nullopt};
  return {cast_to(builder, *of_outputs[0], builder.type(node.inputs[0]).dtype)};
}

ir::Cost cost(ir::Types inputs, ir::Types outputs, const spec::Attributes&) {
  return streaming_cost(inputs, outputs, 0);
}

}  // namespace

const ir::OpSchema kCast{.name = "cast",
                         .min_inputs = 1,
                         .max_inputs = 1,
                         .signature = "(x any) -> any, of the attribute's dtype",
                         .infer = infer,
                         .gradient = gradient,
                         .cost = cost};

}  // namespace anabatic::ops
