// SPDX-License-Identifier: Apache-2.0
#include "ops/router.h"

#include <string>

#include "base/error.h"
#include "ops/build.h"
#include "ops/check.h"

namespace anabatic::ops {
namespace {

std::vector<TensorType> infer(ir::Types inputs, const spec::Attributes& attributes) {
  const Check check("router", inputs, attributes, {"normalize", "top_k"});
  const Operand logits = check.wide(0, "logits", 2);
  const std::int64_t top_k = check.positive_int("top_k");
  if (top_k > logits.size(1))
    check.fail("expected top_k at most the number of experts, got " + std::to_string(top_k) +
               " of " + to_string(*logits.type));
  check.flag("normalize");
  if (check.num_inputs() == 2) check.same_dim(check.i32(1, "documents", 1), 0, logits, 0);
  const std::int64_t tokens = logits.dim(0), experts = logits.dim(1), chosen = top_k;
  const DType dtype = logits.dtype();
  return {typed(dtype, {tokens, chosen}), typed(DType::kInt32, {tokens, chosen}),
          typed(dtype, {tokens, experts}), typed(dtype, {experts}), typed(dtype, {experts})};
}

std::vector<TensorType> infer_gradient(ir::Types inputs, const spec::Attributes& attributes) {
  const Check check("router_gradient", inputs, attributes, {"normalize"});
  const Operand probabilities = check.wide(0, "probabilities", 2),
                experts = check.i32(1, "experts", 2), weights = check.wide(2, "weights", 2);
  check.same_dim(experts, 0, probabilities, 0);
  check.same_shape(weights, experts);
  check.same_dtype(weights, probabilities);
  check.same_type(check.wide(3, "dweights", 2), weights);
  if (check.num_inputs() > 4) {
    const Operand extra = check.wide(4, "dprobabilities");
    if (extra.type->ndim() == 1)
      check.same_dim(extra, 0, probabilities, 1);
    else
      check.same_type(extra, probabilities);
  }
  if (check.num_inputs() > 5) check.same_dim(check.i32(5, "documents", 1), 0, probabilities, 0);
  check.flag("normalize");
  return {*probabilities.type};
}

// Gradients come by way of the weights (outputs[0]) and of the probabilities, either each
// (outputs[2]) or their sums (outputs[4]), which are those of documents only.
ir::Gradients gradient(ir::GraphBuilder& builder, const ir::Node& node,
                       OutputGradients of_outputs) {
  require_no_gradient(node, of_outputs, 1, "experts");
  require_no_gradient(node, of_outputs, 3, "counts");
  ir::Gradients gradients(node.inputs.size());
  if (!of_outputs[0] && !of_outputs[2] && !of_outputs[4]) return gradients;
  ANABATIC_REQUIRE(
      !of_outputs[2] || !of_outputs[4],
      "[router] expected a gradient for its probabilities or for their sums, got both");
  const ir::ValueId dweights =
      of_outputs[0]
          ? *of_outputs[0]
          : builder.add1("fill", {},
                         {{"type", to_string(builder.type(node.outputs[0]))}, {"value", 0.0}});
  std::vector<ir::ValueId> inputs{node.outputs[2], node.outputs[1], node.outputs[0], dweights};
  if (of_outputs[2]) inputs.push_back(*of_outputs[2]);
  if (of_outputs[4]) {
    inputs.push_back(*of_outputs[4]);
    if (node.inputs.size() > 1) inputs.push_back(node.inputs[1]);
  }
  gradients[0] = builder.add1("router_gradient", std::move(inputs),
                              {{"normalize", spec::get_bool(node.attributes, "normalize")}});
  return gradients;
}

// Softmax, then one scan of the experts a choice.
ir::Cost cost(ir::Types inputs, ir::Types outputs, const spec::Attributes& attributes) {
  return streaming_cost(
      inputs, outputs, product({inputs[0].num_elements(), 5 + spec::get_int(attributes, "top_k")}));
}

ir::Cost gradient_cost(ir::Types inputs, ir::Types outputs, const spec::Attributes&) {
  return elementwise_cost(inputs, outputs, 6);
}

}  // namespace

const ir::OpSchema kRouter{.name = "router",
                           .min_inputs = 1,
                           .max_inputs = 2,
                           .num_outputs = 5,
                           .signature =
                               "(logits f32[T,E], documents? i32[T]) -> weights f32[T,k], experts "
                               "i32[T,k], probabilities f32[T,E], "
                               "counts f32[E], probability_sums f32[E]",
                           .infer = infer,
                           .gradient = gradient,
                           .cost = cost};

const ir::OpSchema kRouterGradient{
    .name = "router_gradient",
    .min_inputs = 4,
    .max_inputs = 6,
    .signature =
        "(probabilities f32[T,E], experts i32[T,k], weights f32[T,k], dweights f32[T,k], "
        "dprobabilities? f32[E] or f32[T,E], documents? i32[T]) -> dlogits f32[T,E]",
    .infer = infer_gradient,
    .cost = gradient_cost};

}  // namespace anabatic::ops
