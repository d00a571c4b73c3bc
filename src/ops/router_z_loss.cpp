// SPDX-License-Identifier: Apache-2.0
#include "ops/router_z_loss.h"

#include "ops/build.h"
#include "ops/check.h"

namespace anabatic::ops {
namespace {

std::vector<TensorType> infer(ir::Types inputs, const spec::Attributes& attributes) {
  const Check check("router_z_loss", inputs, attributes);
  return {typed(check.wide(0, "logits", 2).dtype(), {})};
}

std::vector<TensorType> infer_gradient(ir::Types inputs, const spec::Attributes& attributes) {
  const Check check("router_z_loss_gradient", inputs, attributes);
  check.wide(1, "dloss", 0);
  return {*check.wide(0, "logits", 2).type};
}

ir::Gradients gradient(ir::GraphBuilder& builder, const ir::Node& node,
                       OutputGradients of_outputs) {
  if (!of_outputs[0]) return {std::nullopt};
  return {builder.add1("router_z_loss_gradient", {node.inputs[0], *of_outputs[0]})};
}

ir::Cost cost(ir::Types inputs, ir::Types outputs, const spec::Attributes&) {
  return streaming_cost(inputs, outputs, product({inputs[0].num_elements(), 4}));
}

}  // namespace

const ir::OpSchema kRouterZLoss{.name = "router_z_loss",
                                .min_inputs = 1,
                                .max_inputs = 1,
                                .signature = "(logits f32[T,E]) -> f32[]",
                                .infer = infer,
                                .gradient = gradient,
                                .cost = cost};

const ir::OpSchema kRouterZLossGradient{.name = "router_z_loss_gradient",
                                        .min_inputs = 2,
                                        .max_inputs = 2,
                                        .signature = "(logits f32[T,E], dloss f32[]) -> f32[T,E]",
                                        .infer = infer_gradient,
                                        .cost = cost,
                                        .may_alias = {0}};

}  // namespace anabatic::ops
