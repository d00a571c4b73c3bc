// SPDX-License-Identifier: Apache-2.0
#include "ops/losses/router_z_loss.h"

#include "ops/build.h"
#include "ops/check.h"

namespace anabatic::ops {
namespace {

// Both of documents and scale from input `first` on, or neither.
void require_scaled_rows(const Check& check, int first, const Operand& logits) {
  if (check.num_inputs() == first) return;
  if (check.num_inputs() != first + 2) check.fail("expected documents and scale, got one of them");
  check.same_dim(check.i32(first, "documents", 1), 0, logits, 0);
  check.wide(first + 1, "scale", 0);
}

std::vector<TensorType> infer_router_z_loss(ir::Types inputs, const spec::Attributes& attributes) {
  const Check check("router_z_loss", inputs, attributes);
  const Operand logits = check.wide(0, "logits", 2);
  require_scaled_rows(check, 1, logits);
  return {typed(logits.dtype(), {})};
}

std::vector<TensorType> infer_router_z_loss_gradient(ir::Types inputs,
                                                     const spec::Attributes& attributes) {
  const Check check("router_z_loss_gradient", inputs, attributes);
  const Operand logits = check.wide(0, "logits", 2);
  check.wide(1, "dloss", 0);
  require_scaled_rows(check, 2, logits);
  return {*logits.type};
}

ir::Gradients router_z_loss_gradient(ir::GraphBuilder& builder, const ir::Node& node,
                                     OutputGradients of_outputs) {
  ir::Gradients gradients(node.inputs.size());
  if (!of_outputs[0]) return gradients;
  std::vector<ir::ValueId> inputs{node.inputs[0], *of_outputs[0]};
  inputs.insert(inputs.end(), node.inputs.begin() + 1, node.inputs.end());
  gradients[0] = builder.add1("router_z_loss_gradient", std::move(inputs));
  return gradients;
}

ir::Cost router_z_loss_cost(ir::Types inputs, ir::Types outputs, const spec::Attributes&) {
  return streaming_cost(inputs, outputs, product({inputs[0].num_elements(), 4}));
}

}  // namespace

const ir::OpSchema kRouterZLoss{
    .name = "router_z_loss",
    .min_inputs = 1,
    .max_inputs = 3,
    .signature = "(logits f32[T,E], documents? i32[T], scale? f32[]) -> f32[]",
    .infer = infer_router_z_loss,
    .gradient = router_z_loss_gradient,
    .cost = router_z_loss_cost};

const ir::OpSchema kRouterZLossGradient{.name = "router_z_loss_gradient",
                                        .min_inputs = 2,
                                        .max_inputs = 4,
                                        .signature =
                                            "(logits f32[T,E], dloss f32[], documents? "
                                            "i32[T], scale? f32[]) -> f32[T,E]",
                                        .infer = infer_router_z_loss_gradient,
                                        .cost = router_z_loss_cost,
                                        .may_alias = ir::always<0>};

}  // namespace anabatic::ops
