// SPDX-License-Identifier: Apache-2.0
#include "ops/fill.h"

#include "ops/build.h"
#include "ops/check.h"

namespace anabatic::ops {
namespace {

std::vector<TensorType> infer_fill(ir::Types inputs, const spec::Attributes& attributes) {
  const Check check("fill", inputs, attributes, {"type", "value"});
  check.number("value");
  return {parse_tensor_type(check.string("type"))};
}

ir::Gradients fill_gradient(ir::GraphBuilder&, const ir::Node&, OutputGradients) { return {}; }

}  // namespace

const ir::OpSchema kFill{.name = "fill",
                         .min_inputs = 0,
                         .max_inputs = 0,
                         .signature = "() -> of the attribute's type",
                         .infer = infer_fill,
                         .gradient = fill_gradient,
                         .cost = copy_cost};

}  // namespace anabatic::ops
