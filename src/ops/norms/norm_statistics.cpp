// SPDX-License-Identifier: Apache-2.0
#include "ops/norms/norm_statistics.h"

#include <fmt/core.h>

#include "ops/build.h"
#include "ops/check.h"
#include "spec/product_prologue.h"

namespace anabatic::ops {
namespace {

TensorType statistics_of(const Check& check) {
  const Operand x = check.floating(0, "x", 2);
  check.non_negative("epsilon");
  const spec::Norm norm = spec::norm_of(check.attributes());
  if (norm == spec::Norm::kNone)
    check.fail(fmt::format("expected 'norm' to be \"{}\" or \"{}\", got {}", spec::kRmsNorm,
                           spec::kLayerNorm, spec::to_string(check.attributes().at("norm"))));
  return typed(wide_dtype(x.dtype()), {x.dim(0), spec::num_statistics(norm)});
}

std::vector<TensorType> infer_norm_statistics(ir::Types inputs,
                                              const spec::Attributes& attributes) {
  return {statistics_of(Check("norm_statistics", inputs, attributes, {"epsilon", "norm"}))};
}

std::vector<TensorType> infer_add_norm_statistics(ir::Types inputs,
                                                  const spec::Attributes& attributes) {
  const Check check("add_norm_statistics", inputs, attributes, {"epsilon", "norm"});
  check.same_type(check.floating(1, "residual", 2), check.floating(0, "x", 2));
  return {inputs[0], statistics_of(check)};
}

ir::Cost norm_statistics_cost(ir::Types inputs, ir::Types outputs, const spec::Attributes&) {
  return streaming_cost(inputs, outputs, product({inputs[0].num_elements(), 2}));
}

}  // namespace

const ir::OpSchema kAddNormStatistics{
    .name = "add_norm_statistics",
    .min_inputs = 2,
    .max_inputs = 2,
    .num_outputs = 2,
    .signature = "(x [T,W], residual like x) -> sum like x, statistics f32[T,S]",
    .infer = infer_add_norm_statistics,
    .cost = cost_an_element<3>,
    .may_alias = ir::always<0, -1>};

const ir::OpSchema kNormStatistics{.name = "norm_statistics",
                                   .min_inputs = 1,
                                   .max_inputs = 1,
                                   .signature = "(x [T,W]) -> f32[T,S]",
                                   .infer = infer_norm_statistics,
                                   .cost = norm_statistics_cost};

}  // namespace anabatic::ops
