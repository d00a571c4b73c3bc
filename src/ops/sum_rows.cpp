// SPDX-License-Identifier: Apache-2.0
#include "ops/sum_rows.h"

#include "ops/build.h"
#include "ops/check.h"

namespace anabatic::ops {
namespace {

std::vector<TensorType> infer(ir::Types inputs, const spec::Attributes& attributes) {
  const Check check("sum_rows", inputs, attributes);
  const Operand dy = check.floating(0, "dy", 2);
  return {typed(wide_dtype(dy.dtype()), {dy.dim(1)})};
}

ir::Cost cost(ir::Types inputs, ir::Types outputs, const spec::Attributes&) {
  return streaming_cost(inputs, outputs, inputs[0].num_elements());
}

}  // namespace

const ir::OpSchema kSumRows{.name = "sum_rows",
                            .min_inputs = 1,
                            .max_inputs = 1,
                            .signature = "(dy [T,N]) -> f32[N]",
                            .infer = infer,
                            .cost = cost,
                            .can_accumulate = true};

}  // namespace anabatic::ops
