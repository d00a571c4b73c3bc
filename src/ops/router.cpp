// SPDX-License-Identifier: Apache-2.0
#include "ops/router.h"

#include <fmt/core.h>

#include <cmath>
#include <initializer_list>
#include <string>
#include <utility>

#include "base/error.h"
#include "ops/build.h"
#include "ops/check.h"
#include "spec/router.h"

namespace anabatic::ops {
namespace {

Check checked_router(std::string_view op, ir::Types inputs, const spec::Attributes& attributes,
                     std::initializer_list<std::string_view> required,
                     std::span<const std::string_view> optional) {
  return {op, inputs, attributes, std::span(required.begin(), required.size()), optional};
}

void check_normalization(const Check& check, const spec::RouterForm& form) {
  for (const auto& [key, value] :
       {std::pair("epsilon", form.epsilon), std::pair("floor", form.floor)}) {
    if (!(value >= 0) || std::isinf(value))
      check.fail(fmt::format("expected {} of at least 0, got {}", key, value));
    if (value != 0 && !form.normalizes)
      check.fail(fmt::format("expected normalize true with {}, got false", key));
  }
  if (!(form.scale > 0) || std::isinf(form.scale))
    check.fail(fmt::format("expected scale above 0, got {}", form.scale));
}

void check_groups(const Check& check, const spec::RouterForm& form, const Operand& logits) {
  const std::int64_t experts = logits.size(1);
  if (form.groups < 1 || experts % form.groups != 0)
    check.fail(fmt::format("expected groups that divide {} experts, got {}", experts, form.groups));
  if (form.group_top_k < 1 || form.group_top_k > form.groups)
    check.fail(fmt::format("expected group_top_k of 1 to {} groups, got {}", form.groups,
                           form.group_top_k));
  const std::int64_t in_group = experts / form.groups;
  if (form.group_score == spec::GroupScore::kTop2 && in_group < 2)
    check.fail(fmt::format("expected groups of at least 2 experts for top2, got {}", in_group));
  if (form.top_k > in_group * form.group_top_k)
    check.fail(fmt::format("expected top_k at most the {} experts of {} groups, got {}",
                           in_group * form.group_top_k, form.group_top_k, form.top_k));
}

std::vector<TensorType> infer_router(ir::Types inputs, const spec::Attributes& attributes) {
  const Check check = checked_router("router", inputs, attributes, {"normalize", "top_k"},
                                     spec::optional_router_keys());
  const Operand logits = check.wide(0, "logits", 2);
  const std::int64_t top_k = check.positive_int("top_k");
  if (top_k > logits.size(1))
    check.fail("expected top_k at most the number of experts, got " + std::to_string(top_k) +
               " of " + to_string(*logits.type));
  check.flag("normalize");
  const spec::RouterForm form = spec::router_of(attributes);
  check_normalization(check, form);
  check_groups(check, form, logits);
  const auto documents = static_cast<int>(form.documents());
  if (check.num_inputs() < documents || check.num_inputs() > documents + 1)
    check.fail(
        fmt::format("expected {} inputs or documents too, got {}", documents, check.num_inputs()));
  if (form.has_bias) {
    const Operand bias = check.wide(static_cast<int>(form.bias()), "bias", 1);
    check.same_dtype(bias, logits);
    check.same_dim(bias, 0, logits, 1);
  }
  if (check.num_inputs() > documents)
    check.same_dim(check.i32(documents, "documents", 1), 0, logits, 0);
  const std::int64_t tokens = logits.dim(0), experts = logits.dim(1), chosen = top_k;
  const DType dtype = logits.dtype();
  return {typed(dtype, {tokens, chosen}), typed(DType::kInt32, {tokens, chosen}),
          typed(dtype, {tokens, experts}), typed(dtype, {experts}), typed(dtype, {experts})};
}

std::vector<TensorType> infer_router_gradient(ir::Types inputs,
                                              const spec::Attributes& attributes) {
  const Check check = checked_router("router_gradient", inputs, attributes, {"normalize"},
                                     spec::optional_router_gradient_keys());
  check.flag("normalize");
  const spec::RouterForm form = spec::router_of(attributes);
  check_normalization(check, form);
  const Operand scores = check.wide(
                    0, form.score == spec::RouterScore::kSigmoid ? "logits" : "probabilities", 2),
                experts = check.i32(1, "experts", 2), weights = check.wide(2, "weights", 2);
  check.same_dim(experts, 0, scores, 0);
  check.same_shape(weights, experts);
  check.same_dtype(weights, scores);
  check.same_type(check.wide(3, "dweights", 2), weights);
  if (check.num_inputs() > 4) {
    const Operand extra = check.wide(4, "dprobabilities");
    if (extra.type->ndim() == 1)
      check.same_dim(extra, 0, scores, 1);
    else
      check.same_type(extra, scores);
  }
  if (check.num_inputs() > 5) check.same_dim(check.i32(5, "documents", 1), 0, scores, 0);
  return {*scores.type};
}

// Gradients come by way of the weights (outputs[0]) and of the probabilities, either each
// (outputs[2]) or their sums (outputs[4]), which are those of documents only.
ir::Gradients router_gradient(ir::GraphBuilder& builder, const ir::Node& node,
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
  const spec::RouterForm form = spec::router_of(node.attributes);
  // Probabilities of sigmoids do not tell the scores that they were divided from.
  const ir::ValueId scores =
      form.score == spec::RouterScore::kSigmoid ? node.inputs[0] : node.outputs[2];
  std::vector<ir::ValueId> inputs{scores, node.outputs[1], node.outputs[0], dweights};
  if (of_outputs[2]) inputs.push_back(*of_outputs[2]);
  if (of_outputs[4]) {
    inputs.push_back(*of_outputs[4]);
    if (node.inputs.size() > form.documents()) inputs.push_back(node.inputs[form.documents()]);
  }
  gradients[0] =
      builder.add1("router_gradient", std::move(inputs), spec::gradient_attributes(form));
  return gradients;
}

// Scores, then one scan of the experts a choice.
ir::Cost router_cost(ir::Types inputs, ir::Types outputs, const spec::Attributes& attributes) {
  return streaming_cost(
      inputs, outputs, product({inputs[0].num_elements(), 5 + spec::get_int(attributes, "top_k")}));
}

}  // namespace

const ir::OpSchema kRouter{.name = "router",
                           .min_inputs = 1,
                           .max_inputs = 3,
                           .num_outputs = 5,
                           .signature =
                               "(logits f32[T,E], bias? f32[E], documents? i32[T]) -> weights "
                               "f32[T,k], experts i32[T,k], probabilities f32[T,E], "
                               "counts f32[E], probability_sums f32[E]",
                           .infer = infer_router,
                           .gradient = router_gradient,
                           .cost = router_cost};

const ir::OpSchema kRouterGradient{
    .name = "router_gradient",
    .min_inputs = 4,
    .max_inputs = 6,
    .signature =
        "(probabilities or logits f32[T,E], experts i32[T,k], weights f32[T,k], dweights f32[T,k], "
        "dprobabilities? f32[E] or f32[T,E], documents? i32[T]) -> dlogits f32[T,E]",
    .infer = infer_router_gradient,
    .cost = cost_an_element<6>};

}  // namespace anabatic::ops
