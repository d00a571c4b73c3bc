// SPDX-License-Identifier: Apache-2.0
#include "ops/build.h"
#include "ops/check.h"
#include "ops/linear.h"
#include "ops/norms/product_prologue.h"
#include "spec/product.h"

namespace anabatic::ops {
namespace {

// Grouped: weights are stacks, and the last input is the offsets.
template <bool kGrouped>
Operand weight_at(const Check& check, int i, const Operand& rows) {
  return check.weight(i, "weight", kGrouped ? 3 : 2, rows);
}

// But for its prologue every input is a matrix.
ir::Types without_prologue(std::string_view op, ir::Types inputs,
                           const spec::Attributes& attributes) {
  std::size_t most = inputs.size();
  while (most > 2 && inputs[most - 1].ndim() != 2) --most;
  return checked_without_prologue(op, inputs, attributes, most);
}

template <bool kGrouped>
int num_others(const Check& check) {
  return check.num_inputs() - (kGrouped ? 1 : 0);
}

template <bool kGrouped>
void check_weight(const Check& check, const Operand& weight, const Operand& first,
                  bool transposed) {
  if (transposed)
    check.right_operand_of_gradient(weight);
  else
    check.right_operand(weight, false);
  if (weight.type->layout != first.type->layout || weight.type->blocks != first.type->blocks)
    check.fail("expected weights of one layout and format, got " + to_string(*first.type) +
               " and " + to_string(*weight.type));
  if (kGrouped) {
    check.same_dim(weight, 0, first, 0);
    check.size(check.i32(check.num_inputs() - 1, "offsets", 1), 0, weight.size(0) + 1);
  }
}

template <bool kGrouped>
std::vector<TensorType> infer_linear_many(ir::Types inputs, const spec::Attributes& attributes) {
  const Check check =
      kGrouped ? Check("grouped_linear_many", inputs, attributes, {}, {"fallback"})
               : Check("linear_many", without_prologue("linear_many", inputs, attributes),
                       attributes, {}, {"dropout_rate", "dropout_site", "fallback", "norm"});
  const Operand x = check.floating(0, "x", 2), first = weight_at<kGrouped>(check, 1, x);
  std::vector<TensorType> outputs;
  for (int i = 1; i < num_others<kGrouped>(check); ++i) {
    const Operand weight = weight_at<kGrouped>(check, i, x);
    check_weight<kGrouped>(check, weight, first, false);
    check.fallback(weight);
    check.same_dim(x, 1, weight, -1);
    outputs.push_back(typed(x.dtype(), {x.dim(0), weight.dim(-2)}));
  }
  return outputs;
}

template <bool kGrouped>
std::vector<TensorType> infer_linear_many_input_gradient(ir::Types inputs,
                                                         const spec::Attributes& attributes) {
  const Check check = kGrouped ? Check("grouped_linear_many_input_gradient", inputs, attributes, {},
                                       {spec::kPackedFormat, "slices"})
                               : Check("linear_many_input_gradient", inputs, attributes);
  if (num_others<kGrouped>(check) % 2 != 0)
    check.fail("expected a weight after each dy, got " +
               std::to_string(num_others<kGrouped>(check)) + " inputs");
  const Operand dy0 = check.floating(0, "dy", 2), first = weight_at<kGrouped>(check, 1, dy0);
  for (int i = 0; i < num_others<kGrouped>(check); i += 2) {
    const Operand dy = check.floating(i, "dy", 2);
    const Operand weight = weight_at<kGrouped>(check, i + 1, dy);
    check.same_dtype(dy0, dy);
    check.same_dim(dy0, 0, dy, 0);
    check_weight<kGrouped>(check, weight, first, true);
    check.same_dim(dy, 1, weight, -2);
    check.same_dim(weight, -1, first, -1);
  }
  return {typed(dy0.dtype(), {dy0.dim(0), first.dim(-1)})};
}

template <bool kGrouped>
std::vector<TensorType> infer_linear_many_weight_gradient(ir::Types inputs,
                                                          const spec::Attributes& attributes) {
  const Check check =
      kGrouped ? Check("grouped_linear_many_weight_gradient", inputs, attributes, {}, {"fallback"})
               : Check("linear_many_weight_gradient",
                       without_prologue("linear_many_weight_gradient", inputs, attributes),
                       attributes, {}, {"dropout_rate", "dropout_site", "fallback", "norm"});
  const Operand x = check.floating(0, "x", 2);
  check.fallback_of_gradient(x);
  std::vector<TensorType> outputs;
  for (int i = 1; i < num_others<kGrouped>(check); ++i) {
    const Operand dy = check.floating(i, "dy", 2);
    check.gradient_dtype_of(dy, x);
    check.same_dim(x, 0, dy, 0);
    outputs.push_back(typed(wide_dtype(x.dtype()), {dy.dim(1), x.dim(1)}));
  }
  if (!kGrouped) return outputs;
  const Operand offsets = check.i32(check.num_inputs() - 1, "offsets", 1);
  if (offsets.size(0) < 2)
    check.fail("expected offsets of at least one expert, got " + to_string(*offsets.type));
  for (TensorType& type : outputs) type.shape.insert(type.shape.begin(), offsets.size(0) - 1);
  return outputs;
}

// Each product of x [rows, in] to y [rows, out], forward or backward.
std::int64_t flops(const TensorType& x, const TensorType& y) {
  return product({2, x.dim(0), x.dim(1), y.dim(1)});
}

ir::Cost linear_many_cost(ir::Types inputs, ir::Types outputs, const spec::Attributes&) {
  std::int64_t sum = 0;
  for (const TensorType& y : outputs) sum += flops(inputs[0], y);
  return streaming_cost(inputs, outputs, sum);
}

ir::Cost linear_many_input_gradient_cost(ir::Types inputs, ir::Types outputs,
                                         const spec::Attributes&) {
  std::int64_t sum = 0;
  for (std::size_t i = 0; i + 1 < inputs.size(); i += 2) sum += flops(outputs[0], inputs[i]);
  return streaming_cost(inputs, outputs, sum);
}

ir::Cost linear_many_weight_gradient_cost(ir::Types inputs, ir::Types outputs,
                                          const spec::Attributes&) {
  std::int64_t sum = 0;
  for (std::size_t i = 1; i <= outputs.size(); ++i) sum += flops(inputs[0], inputs[i]);
  return streaming_cost(inputs, outputs, sum);
}

}  // namespace

const ir::OpSchema kLinearMany{.name = "linear_many",
                               .product = spec::find_product("linear_many"),
                               .min_inputs = 3,
                               .max_inputs = -1,
                               .num_outputs = ir::kAnyNumber,
                               .signature =
                                   "(x [T,K], weight0 [N0,K], weight1 [N1,K], ..., norm?..., "
                                   "draws? i32[3]) -> [T,N0], [T,N1], ... like x",
                               .infer = infer_linear_many<false>,
                               .cost = linear_many_cost};

const ir::OpSchema kLinearManyInputGradient{
    .name = "linear_many_input_gradient",
    .product = spec::find_product("linear_many_input_gradient"),
    .min_inputs = 4,
    .max_inputs = -1,
    .signature = "(dy0 [T,N0], weight0 [N0,K], dy1 [T,N1], weight1 [N1,K], ...) -> [T,K] like dy0",
    .infer = infer_linear_many_input_gradient<false>,
    .cost = linear_many_input_gradient_cost};

const ir::OpSchema kLinearManyWeightGradient{
    .name = "linear_many_weight_gradient",
    .product = spec::find_product("linear_many_weight_gradient"),
    .min_inputs = 3,
    .max_inputs = -1,
    .num_outputs = ir::kAnyNumber,
    .signature =
        "(x [T,K], dy0 [T,N0], dy1 [T,N1], ..., norm?..., draws? i32[3]) -> f32[N0,K], f32[N1,K], "
        "...",
    .infer = infer_linear_many_weight_gradient<false>,
    .cost = linear_many_weight_gradient_cost,
    .can_accumulate = true};

const ir::OpSchema kGroupedLinearMany{
    .name = "grouped_linear_many",
    .product = spec::find_product("grouped_linear_many"),
    .min_inputs = 4,
    .max_inputs = -1,
    .num_outputs = ir::kAnyNumber,
    .signature =
        "(x [R,K], weight0 [E,N0,K], weight1 [E,N1,K], ..., offsets i32[E+1]) -> [R,N0], "
        "[R,N1], ... like x",
    .infer = infer_linear_many<true>,
    .cost = linear_many_cost};

const ir::OpSchema kGroupedLinearManyInputGradient{
    .name = "grouped_linear_many_input_gradient",
    .product = spec::find_product("grouped_linear_many_input_gradient"),
    .min_inputs = 5,
    .max_inputs = -1,
    .signature =
        "(dy0 [R,N0], weight0 [E,N0,K], dy1 [R,N1], weight1 [E,N1,K], ..., offsets "
        "i32[E+1]) -> [R,K] like dy0",
    .infer = infer_linear_many_input_gradient<true>,
    .cost = linear_many_input_gradient_cost,
    .most_slices = most_slices_of_experts};

const ir::OpSchema kGroupedLinearManyWeightGradient{
    .name = "grouped_linear_many_weight_gradient",
    .product = spec::find_product("grouped_linear_many_weight_gradient"),
    .min_inputs = 4,
    .max_inputs = -1,
    .num_outputs = ir::kAnyNumber,
    .signature =
        "(x [R,K], dy0 [R,N0], dy1 [R,N1], ..., offsets i32[E+1]) -> f32[E,N0,K], "
        "f32[E,N1,K], ...",
    .infer = infer_linear_many_weight_gradient<true>,
    .cost = linear_many_weight_gradient_cost,
    .can_accumulate = true};

}  // namespace anabatic::ops
