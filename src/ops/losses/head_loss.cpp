// SPDX-License-Identifier: Apache-2.0
#include "ops/losses/head_loss.h"

#include "ops/build.h"
#include "ops/check.h"
#include "spec/head_inputs.h"

namespace anabatic::ops {
namespace {

void check_head_loss_inputs(const Check& check, const spec::Attributes& attributes) {
  const Operand x = check.floating(0, "x", 2), weight = check.floating(1, "weight", 2);
  check.same_dtype(x, weight);
  check.same_dim(x, 1, weight, 1);
  check.same_dim(check.i32(2, "labels", 1), 0, x, 0);
  check.wide(3, "scale", 0);
  if (spec::is_loss_scaled(attributes)) check.wide(spec::kHeadLossScaleInput, "loss_scale", 0);
  if (const int weights = spec::head_weights_input(attributes); check.num_inputs() > weights)
    check.same_dim(check.wide(weights, "weights", 1), 0, x, 0);
}

// f16 may stand next to an x in bf16.
TensorType dx_type(const Check& check, const TensorType& x) {
  const TensorType type = with_dtype(x, check.dtype_or("dx_dtype", x.dtype));
  check.gradient_of({"dx", &type}, {"x", &x});
  return type;
}

std::vector<TensorType> infer_head_loss(ir::Types inputs, const spec::Attributes& attributes) {
  check_head_loss_inputs(Check("head_loss", inputs, attributes), attributes);
  return {typed(wide_dtype(inputs[0].dtype), {})};
}

std::vector<TensorType> infer_with_gradient(ir::Types inputs, const spec::Attributes& attributes) {
  const Check check("head_loss_with_gradient", inputs, attributes, {"dloss"},
                    {"dx_dtype", "fallback", "slices", "loss_scaled"});
  check_head_loss_inputs(check, attributes);
  check.slices();
  check.fallback_of_gradient(check.floating(0, "x", 2));
  check.number("dloss");
  const DType wide = wide_dtype(inputs[0].dtype);
  return {typed(wide, {}), dx_type(check, inputs[0]), with_dtype(inputs[1], wide)};
}

std::vector<TensorType> infer_with_input_gradient(ir::Types inputs,
                                                  const spec::Attributes& attributes) {
  const Check check("head_loss_with_input_gradient", inputs, attributes, {"dloss"},
                    {"dx_dtype", "fallback", "loss_scaled"});
  check_head_loss_inputs(check, attributes);
  check.fallback_of_gradient(check.floating(0, "x", 2));
  check.number("dloss");
  return {typed(wide_dtype(inputs[0].dtype), {}), dx_type(check, inputs[0])};
}

// One product a pass over the matrix; every label may count.
ir::Cost head_loss_cost(ir::Types inputs, ir::Types outputs, std::int64_t num_products) {
  return streaming_cost(
      inputs, outputs,
      product({2 * num_products, inputs[0].dim(0), inputs[0].dim(1), inputs[1].dim(0)}));
}

}  // namespace

const ir::OpSchema kHeadLoss{
    .name = "head_loss",
    .min_inputs = 4,
    .max_inputs = 5,
    .signature =
        "(x [T,K], weight [V,K], labels i32[T], scale f32[], weights? f32[T]) -> loss f32[]",
    .infer = infer_head_loss,
    .cost = [](ir::Types inputs, ir::Types outputs, const spec::Attributes&) {
      return head_loss_cost(inputs, outputs, 1);
    }};

const ir::OpSchema kHeadLossWithGradient{
    .name = "head_loss_with_gradient",
    .min_inputs = 4,
    .max_inputs = 6,
    .num_outputs = 3,
    .signature =
        "(x [T,K], weight [V,K], labels i32[T], scale f32[], loss_scale? f32[], weights? f32[T]) "
        "-> loss f32[], dx [T,K], dweight f32[V,K]",
    .infer = infer_with_gradient,
    .cost = [](ir::Types inputs, ir::Types outputs,
               const spec::Attributes&) { return head_loss_cost(inputs, outputs, 3); },
    .may_alias = ir::always<-1, 0, -1>,
    .can_accumulate = true,
    .most_slices = [](ir::Types inputs, const spec::Attributes&) { return inputs[0].dim(0); }};

const ir::OpSchema kHeadLossWithInputGradient{
    .name = "head_loss_with_input_gradient",
    .min_inputs = 4,
    .max_inputs = 6,
    .num_outputs = 2,
    .signature =
        "(x [T,K], weight [V,K], labels i32[T], scale f32[], loss_scale? f32[], weights? f32[T]) "
        "-> loss f32[], dx [T,K]",
    .infer = infer_with_input_gradient,
    .cost = [](ir::Types inputs, ir::Types outputs,
               const spec::Attributes&) { return head_loss_cost(inputs, outputs, 2); },
    .may_alias = ir::always<-1, 0>,
    .can_accumulate = true};

}  // namespace anabatic::ops
