// SPDX-License-Identifier: Apache-2.0
#include "ops/sum_rows.h"

#include "ops/build.h"
#include "ops/check.h"

namespace anabatic::ops {
namespace {

std::vector<TensorType> infer_sum_rows(ir::Types inputs, const spec::Attributes& attributes) {
  const Check check("sum_rows", inputs, attributes);
  const Operand dy = check.floating(0, "dy", 2);
  const DType dtype = wide_dtype(dy.dtype());
  if (check.num_inputs() == 1) return {typed(dtype, {dy.dim(1)})};
  const Operand offsets = check.i32(1, "offsets", 1);
  if (offsets.size(0) < 2)
    check.fail("expected offsets of at least one group, got " + to_string(*offsets.type));
  return {typed(dtype, {offsets.size(0) - 1, dy.dim(1)})};
}

ir::Cost sum_rows_cost(ir::Types inputs, ir::Types outputs, const spec::Attributes&) {
  return streaming_cost(inputs, outputs, inputs[0].num_elements());
}

}  // namespace

const ir::OpSchema kSumRows{.name = "sum_rows",
                            .min_inputs = 1,
                            .max_inputs = 2,
                            .signature = "(dy [T,N], offsets? i32[E+1]) -> f32[N] or f32[E,N]",
                            .infer = infer_sum_rows,
                            .cost = sum_rows_cost,
                            .can_accumulate = true};

}  // namespace anabatic::ops
