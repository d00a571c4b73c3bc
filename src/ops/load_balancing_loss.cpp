// SPDX-License-Identifier: Apache-2.0
#include "ops/load_balancing_loss.h"

#include <string>

#include "ops/build.h"
#include "ops/check.h"

namespace anabatic::ops {
namespace {

std::vector<TensorType> infer(ir::Types inputs, const spec::Attributes& attributes) {
  const Check check("load_balancing_loss", inputs, attributes, {"num_tokens", "top_k"});
  if (check.num_inputs() % 2 != 0)
    check.fail("expected pairs of counts and sums, got " + std::to_string(check.num_inputs()) +
               " inputs");
  const Operand first = check.wide(0, "counts", 1);
  for (int i = 1; i < check.num_inputs(); ++i)
    check.same_type(check.wide(i, i % 2 == 0 ? "counts" : "sums", 1), first);
  check.positive_int("num_tokens");
  check.positive_int("top_k");
  return {typed(first.dtype(), {})};
}

std::vector<TensorType> infer_gradient(ir::Types inputs, const spec::Attributes& attributes) {
  const Check check("load_balancing_loss_gradient", inputs, attributes, {"num_tokens", "top_k"});
  check.wide(0, "dloss", 0);
  const Operand first = check.wide(1, "counts", 1);
  for (int i = 2; i < check.num_inputs(); ++i) check.same_type(check.wide(i, "counts", 1), first);
  check.positive_int("num_tokens");
  check.positive_int("top_k");
  return {*first.type};
}

// Counts are piecewise constant. All sums share one gradient.
ir::Gradients gradient(ir::GraphBuilder& builder, const ir::Node& node,
                       OutputGradients of_outputs) {
  ir::Gradients gradients(node.inputs.size());
  if (!of_outputs[0]) return gradients;
  std::vector<ir::ValueId> inputs{*of_outputs[0]};
  for (std::size_t i = 0; i < node.inputs.size(); i += 2) inputs.push_back(node.inputs[i]);
  const ir::ValueId dsums =
      builder.add1("load_balancing_loss_gradient", std::move(inputs), node.attributes);
  for (std::size_t i = 1; i < node.inputs.size(); i += 2) gradients[i] = dsums;
  return gradients;
}

ir::Cost cost(ir::Types inputs, ir::Types outputs, const spec::Attributes&) {
  return streaming_cost(
      inputs, outputs,
      product({inputs.back().num_elements(), static_cast<std::int64_t>(inputs.size())}));
}

}  // namespace

const ir::OpSchema kLoadBalancingLoss{
    .name = "load_balancing_loss",
    .min_inputs = 2,
    .max_inputs = -1,
    .signature = "(counts0 f32[E], sums0 f32[E], counts1, sums1, ...) -> f32[]",
    .infer = infer,
    .gradient = gradient,
    .cost = cost};

const ir::OpSchema kLoadBalancingLossGradient{
    .name = "load_balancing_loss_gradient",
    .min_inputs = 2,
    .max_inputs = -1,
    .signature = "(dloss f32[], counts0 f32[E], counts1, ...) -> f32[E]",
    .infer = infer_gradient,
    .cost = cost};

}  // namespace anabatic::ops
