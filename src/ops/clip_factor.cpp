// SPDX-License-Identifier: Apache-2.0
#include "ops/clip_factor.h"

#include "ops/build.h"
#include "ops/check.h"

namespace anabatic::ops {
namespace {

std::vector<TensorType> infer_clip_factor(ir::Types inputs, const spec::Attributes& attributes) {
  const Check check("clip_factor", inputs, attributes, {"max_norm"});
  const Operand norm = check.wide(0, "norm", 0);
  check.non_negative("max_norm");
  return {*norm.type};
}

}  // namespace

const ir::OpSchema kClipFactor{.name = "clip_factor",
                               .min_inputs = 1,
                               .max_inputs = 1,
                               .signature = "(norm f32[]) -> f32[]",
                               .infer = infer_clip_factor,
                               .cost = cost_an_element<3>};

}  // namespace anabatic::ops
