// SPDX-License-Identifier: Apache-2.0
#include "ops/accumulate.h"

#include "ops/build.h"
#include "ops/check.h"

namespace anabatic::ops {
namespace {

std::vector<TensorType> sum_of(const Check& check, std::string_view first, std::string_view other) {
  const Operand sum = check.wide(0, first);
  for (int i = 1; i < check.num_inputs(); ++i) {
    const Operand term = check.wide(i, other);
    check.same_dtype(sum, term);
    check.same_shape(sum, term);
  }
  return {*sum.type};
}

std::vector<TensorType> infer_accumulate(ir::Types inputs, const spec::Attributes& attributes) {
  return sum_of(Check("accumulate", inputs, attributes), "before", "contribution");
}

std::vector<TensorType> infer_leaves(ir::Types inputs, const spec::Attributes& attributes) {
  const Check check("sum_leaves", inputs, attributes, {"leaves"});
  (void)check.positive_int("leaves");
  for (int i = 1; i < check.num_inputs(); ++i)
    check.same_type(check.floating(0, "leaf"), check.floating(i, "level"));
  return sum_of(check, "leaf", "level");
}

ir::Cost cost_of_leaves(ir::Types inputs, ir::Types outputs, const spec::Attributes&) {
  return elementwise_cost(inputs, outputs, std::ssize(inputs) - 1);
}

// Never a kernel call: the contributions' writers do the additions.
ir::Cost accumulate_cost(ir::Types, ir::Types, const spec::Attributes&) { return {}; }

}  // namespace

const ir::OpSchema kAccumulate{
    .name = "accumulate",
    .min_inputs = 2,
    .max_inputs = -1,
    .signature = "(before f32 any, c0 like before, c1, ...) -> after like before",
    .infer = infer_accumulate,
    .cost = accumulate_cost,
    .must_alias = ir::always<0>};

const ir::OpSchema kSumLeaves{
    .name = "sum_leaves",
    .min_inputs = 2,
    .max_inputs = -1,
    .signature = "(leaf f32 any, level0 like leaf, level1, ...) -> like leaf",
    .infer = infer_leaves,
    .cost = cost_of_leaves,
    .must_alias = ir::always<0>};

}  // namespace anabatic::ops
