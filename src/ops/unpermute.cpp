// SPDX-License-Identifier: Apache-2.0
#include "ops/unpermute.h"

#include "ops/build.h"
#include "ops/check.h"

namespace anabatic::ops {
namespace {

void check_rows(const Check& check, const Operand& y, const Operand& weights,
                const Operand& slots) {
  check.size(y, 0, product({weights.size(0), weights.size(1)}));
  check.same_dim(slots, 0, y, 0);
}

std::vector<TensorType> infer_unpermute(ir::Types inputs, const spec::Attributes& attributes) {
  const Check check("unpermute", inputs, attributes);
  const Operand y = check.floating(0, "y", 2), weights = check.wide(1, "weights", 2);
  check_rows(check, y, weights, check.i32(2, "slots", 1));
  return {typed(y.dtype(), {weights.dim(0), y.dim(1)})};
}

std::vector<TensorType> infer_unpermute_gradient(ir::Types inputs,
                                                 const spec::Attributes& attributes) {
  const Check check("unpermute_gradient", inputs, attributes);
  const Operand dout = check.floating(0, "dout", 2), y = check.floating(1, "y", 2),
                weights = check.wide(2, "weights", 2);
  check_rows(check, y, weights, check.i32(3, "slots", 1));
  check.gradient_dtype_of(dout, y);
  check.same_dim(dout, 0, weights, 0);
  check.same_dim(dout, 1, y, 1);
  return {with_dtype(*y.type, dout.dtype()), *weights.type};
}

ir::Gradients unpermute_gradient(ir::GraphBuilder& builder, const ir::Node& node,
                                 OutputGradients of_outputs) {
  if (!of_outputs[0]) return ir::Gradients(3);
  const auto d = builder.add("unpermute_gradient",
                             {*of_outputs[0], node.inputs[0], node.inputs[1], node.inputs[2]});
  return {d[0], d[1], std::nullopt};
}

ir::Cost unpermute_cost(ir::Types inputs, ir::Types outputs, const spec::Attributes&) {
  return streaming_cost(inputs, outputs, product({inputs[0].num_elements(), 2}));
}

ir::Cost unpermute_gradient_cost(ir::Types inputs, ir::Types outputs, const spec::Attributes&) {
  return streaming_cost(inputs, outputs, product({inputs[1].num_elements(), 3}));
}

}  // namespace

const ir::OpSchema kUnpermute{
    .name = "unpermute",
    .min_inputs = 3,
    .max_inputs = 3,
    .signature = "(y [R,H], weights f32[T,k], slots i32[R]) -> [T,H] like y",
    .infer = infer_unpermute,
    .gradient = unpermute_gradient,
    .cost = unpermute_cost};

const ir::OpSchema kUnpermuteGradient{
    .name = "unpermute_gradient",
    .min_inputs = 4,
    .max_inputs = 4,
    .num_outputs = 2,
    .signature =
        "(dout [T,H], y [R,H], weights f32[T,k], slots i32[R]) -> dy [R,H], dweights "
        "f32[T,k]",
    .infer = infer_unpermute_gradient,
    .cost = unpermute_gradient_cost};

}  // namespace anabatic::ops
