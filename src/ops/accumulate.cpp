// SPDX-License-Identifier: Apache-2.0
#include "ops/accumulate.h"

#include "ops/build.h"
#include "ops/check.h"

namespace anabatic::ops {
namespace {

std::vector<TensorType> infer(ir::Types inputs, const spec::Attributes& attributes) {
  const Check check("accumulate", inputs, attributes);
  const Operand before = check.wide(0, "before");
  for (int i = 1; i < check.num_inputs(); ++i) {
    const Operand contribution = check.wide(i, "contribution");
    check.same_dtype(before, contribution);
    check.same_shape(before, contribution);
  }
  return {*before.type};
}

// Never a kernel call: the contributions' writers do the additions.
ir::Cost cost(ir::Types, ir::Types, const spec::Attributes&) { return {}; }

}  // namespace

const ir::OpSchema kAccumulate{
    .name = "accumulate",
    .min_inputs = 2,
    .max_inputs = -1,
    .signature = "(before f32 any, c0 like before, c1, ...) -> after like before",
    .infer = infer,
    .cost = cost,
    .must_alias = ir::always<0>};

}  // namespace anabatic::ops
