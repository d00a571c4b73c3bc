// SPDX-License-Identifier: Apache-2.0
#include "ops/losses/cross_entropy.h"

#include <string>

#include "ops/build.h"
#include "ops/check.h"

namespace anabatic::ops {
namespace {

// The weights of rows, where there are any, are input `weights`.
void check_cross_entropy_inputs(const Check& check, int weights) {
  const Operand logits = check.floating(0, "logits", 2), labels = check.i32(1, "labels", 1);
  check.same_dim(labels, 0, logits, 0);
  check.wide(2, "scale", 0);
  if (check.num_inputs() > weights) check.same_dim(check.wide(weights, "weights", 1), 0, logits, 0);
}

std::vector<TensorType> infer_cross_entropy(ir::Types inputs, const spec::Attributes& attributes) {
  const Check check("cross_entropy", inputs, attributes);
  check_cross_entropy_inputs(check, 3);
  const DType dtype = wide_dtype(inputs[0].dtype);
  return {typed(dtype, {}), typed(dtype, {inputs[0].shape[0]})};
}

std::vector<TensorType> infer_cross_entropy_gradient(ir::Types inputs,
                                                     const spec::Attributes& attributes) {
  const Check check("cross_entropy_gradient", inputs, attributes, {"dtype"});
  check_cross_entropy_inputs(check, 5);
  const Operand logits = check.floating(0, "logits", 2), lse = check.wide(3, "lse", 1);
  check.same_dim(lse, 0, logits, 0);
  check.wide(4, "dloss", 0);
  return {with_dtype(*logits.type, check.dtype("dtype"))};
}

ir::Gradients cross_entropy_gradient(ir::GraphBuilder& builder, const ir::Node& node,
                                     OutputGradients of_outputs) {
  require_no_gradient(node, of_outputs, 1, "lse");
  ir::Gradients gradients(node.inputs.size());
  if (!of_outputs[0]) return gradients;
  const std::string dtype(to_string(builder.type(node.inputs[0]).dtype));
  std::vector<ir::ValueId> inputs(node.inputs.begin(), node.inputs.begin() + 3);
  inputs.insert(inputs.end(), {node.outputs[1], *of_outputs[0]});
  inputs.insert(inputs.end(), node.inputs.begin() + 3, node.inputs.end());
  gradients[0] = builder.add1("cross_entropy_gradient", std::move(inputs), {{"dtype", dtype}});
  return gradients;
}

// A maximum, a difference, an exponential and a sum each logit.
ir::Cost cross_entropy_cost(ir::Types inputs, ir::Types outputs, const spec::Attributes&) {
  return streaming_cost(inputs, outputs, product({inputs[0].num_elements(), 4}));
}

}  // namespace

const ir::OpSchema kCrossEntropy{
    .name = "cross_entropy",
    .min_inputs = 3,
    .max_inputs = 4,
    .num_outputs = 2,
    .signature =
        "(logits [T,V], labels i32[T], scale f32[], weights? f32[T]) -> loss f32[], lse f32[T]",
    .infer = infer_cross_entropy,
    .gradient = cross_entropy_gradient,
    .cost = cross_entropy_cost};

const ir::OpSchema kCrossEntropyGradient{
    .name = "cross_entropy_gradient",
    .min_inputs = 5,
    .max_inputs = 6,
    .signature =
        "(logits [T,V], labels i32[T], scale f32[], lse f32[T], dloss f32[], weights? f32[T]) -> "
        "dlogits [T,V]",
    .infer = infer_cross_entropy_gradient,
    .cost = cross_entropy_cost,
    .may_alias = ir::always<0>};

}  // namespace anabatic::ops
