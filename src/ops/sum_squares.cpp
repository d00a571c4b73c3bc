// SPDX-License-Identifier: Apache-2.0
#include "ops/sum_squares.h"

#include "ops/build.h"
#include "ops/check.h"

namespace anabatic::ops {
namespace {

std::vector<TensorType> infer(ir::Types inputs, const spec::Attributes& attributes) {
  const Check check("sum_squares", inputs, attributes);
  check.floating(0, "x");
  return {typed(DType::kFloat64, {})};
}

ir::Cost cost(ir::Types inputs, ir::Types outputs, const spec::Attributes&) {
  return streaming_cost(inputs, outputs, product({inputs[0].num_elements(), 2}));
}

}  // namespace

const ir::OpSchema kSumSquares{.name = "sum_squares",
                               .min_inputs = 1,
                               .max_inputs = 1,
                               .signature = "(x any) -> f64[]",
                               .infer = infer,
                               .cost = cost};

}  // namespace anabatic::ops
