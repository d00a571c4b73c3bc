// SPDX-License-Identifier: Apache-2.0
#include "ops/fill.h"

#include "ops/build.h"
#include "ops/check.h"

namespace anabatic::ops {
namespace {

std::vector<TensorType> infer(ir::Types inputs, const spec::Attributes& attributes) {
  const Check check("fill", inputs, attributes, {"type", "value"});
  check.number("value");
  return {parse_tensor_type(check.string("type"))};
}

ir::Gradients gradient(ir::GraphBuilder&, const ir::Node&, OutputGradients) { return {}; }

ir::Cost cost(ir::Types inputs, ir::Types outputs, const spec::Attributes&) {
  return streaming_cost(inputs, outputs, 0);
}

}  // namespace

const ir::OpSchema kFill{.name = "fill",
                         .min_inputs = 0,
                         .max_inputs = 0,
                         .signature = "() -> of the attribute's type",
                         .infer = infer,
                         .gradient = gradient,
                         .cost = cost};

}  // namespace anabatic::ops
