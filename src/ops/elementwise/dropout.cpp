// SPDX-License-Identifier: Apache-2.0
#include "ops/elementwise/dropout.h"

#include <fmt/core.h>

#include "ops/build.h"
#include "ops/check.h"
#include "spec/dropout.h"

namespace anabatic::ops {

void check_dropout_rate(const Check& check, std::string_view name) {
  const double rate = check.fraction(name);
  const std::int64_t steps = spec::dropout_threshold(rate);
  if (steps < 1 || steps >= spec::kDropoutSteps)
    check.fail(fmt::format("expected '{}' of {} to {}, got {}", name, 1.0 / spec::kDropoutSteps,
                           1 - 1.0 / spec::kDropoutSteps, rate));
}

namespace {

std::vector<TensorType> infer(ir::Types inputs, const spec::Attributes& attributes) {
  const Check check("dropout", inputs, attributes, {"rate", "site"});
  const Operand x = check.floating(0, "x", 2), draws = check.i32(1, "draws", 1);
  check.size(draws, 0, spec::kNumDropoutDraws);
  check_dropout_rate(check, "rate");
  check.string("site");
  return {*x.type};
}

ir::Gradients gradient(ir::GraphBuilder& builder, const ir::Node& node,
                       OutputGradients of_outputs) {
  if (!of_outputs[0]) return ir::Gradients(2);
  return {builder.add1("dropout", {*of_outputs[0], node.inputs[1]}, node.attributes), std::nullopt};
}

}  // namespace

const ir::OpSchema kDropout{.name = "dropout",
                            .min_inputs = 2,
                            .max_inputs = 2,
                            .signature = "(x [T,W], draws i32[3]) -> like x",
                            .infer = infer,
                            .gradient = gradient,
                            .cost = cost_an_element<1>,
                            .may_alias = ir::always<0>};

}  // namespace anabatic::ops
