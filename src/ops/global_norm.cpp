// SPDX-License-Identifier: Apache-2.0
#include "ops/global_norm.h"

#include "ops/build.h"
#include "ops/check.h"

namespace anabatic::ops {
namespace {

std::vector<TensorType> infer_global_norm(ir::Types inputs, const spec::Attributes& attributes) {
  const Check check("global_norm", inputs, attributes);
  for (int i = 0; i < check.num_inputs(); ++i) check.f64(i, "sums", kAnyNdim);
  return {typed(DType::kFloat32, {})};
}

ir::Cost global_norm_cost(ir::Types inputs, ir::Types outputs, const spec::Attributes&) {
  std::int64_t terms = 0;
  for (const TensorType& input : inputs) terms += input.num_elements();
  return streaming_cost(inputs, outputs, terms + 1);
}

}  // namespace

const ir::OpSchema kGlobalNorm{.name = "global_norm",
                               .min_inputs = 1,
                               .max_inputs = -1,
                               .signature = "(s0 f64, s1 f64, ...) -> f32[]",
                               .infer = infer_global_norm,
                               .cost = global_norm_cost};

}  // namespace anabatic::ops
