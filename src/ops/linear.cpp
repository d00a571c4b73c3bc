// SPDX-License-Identifier: Apache-2.0
#include "ops/linear.h"

#include <string>

#include "ops/build.h"
#include "ops/check.h"
#include "ops/norms/product_prologue.h"

namespace anabatic::ops {
namespace {

constexpr int kInto = 2;  // of a weight gradient

std::vector<TensorType> infer_linear(ir::Types inputs, const spec::Attributes& attributes) {
  const Check check("linear", checked_without_prologue("linear", inputs, attributes, 3), attributes,
                    {}, {"dropout_rate", "dropout_site", "fallback", "norm", "output_dtype"});
  const Operand x = check.floating(0, "x", 2), weight = check.weight(1, "weight", 2, x);
  check.right_operand(weight, false);
  check.fallback(weight);
  check.same_dim(x, 1, weight, 1);
  if (check.num_inputs() == 3) check.same_dim(check.wide(2, "bias", 1), 0, weight, 0);
  return {typed(check.dtype_or("output_dtype", x.dtype()), {x.dim(0), weight.dim(0)})};
}

std::vector<TensorType> infer_linear_input_gradient(ir::Types inputs,
                                                    const spec::Attributes& attributes) {
  const Check check("linear_input_gradient", inputs, attributes, {"output_dtype"});
  const Operand dy = check.floating(0, "dy", 2), weight = check.weight(1, "weight", 2, dy);
  check.right_operand(weight, true);
  check.same_dim(dy, 1, weight, 0);
  return {typed(check.dtype("output_dtype"), {dy.dim(0), weight.dim(1)})};
}

std::vector<TensorType> linear_weight_gradient_types(const Check& check) {
  const Operand x = check.floating(0, "x", 2), dy = check.floating(1, "dy", 2);
  check.gradient_dtype_of(dy, x);
  check.same_dim(x, 0, dy, 0);
  check.fallback_of_gradient(x);
  return {laid_out(check, typed(wide_dtype(x.dtype()), {dy.dim(1), x.dim(1)}))};
}

std::vector<TensorType> infer_linear_weight_gradient(ir::Types inputs,
                                                     const spec::Attributes& attributes) {
  const Check check("linear_weight_gradient",
                    checked_without_prologue("linear_weight_gradient", inputs, attributes, 3),
                    attributes, {},
                    {"dropout_rate", "dropout_site", "fallback", "first_row", "layout", "norm",
                     "of_rows", "output_dtype"});
  return {placed(check, linear_weight_gradient_types(check)[0], kInto)};
}

ir::Aliases weight_gradient_aliases(const spec::Attributes& attributes) {
  return is_written_into(attributes) ? ir::always<kInto>(attributes) : ir::Aliases{};
}

std::vector<TensorType> infer_linear_weight_gradient_squares(ir::Types inputs,
                                                             const spec::Attributes& attributes) {
  const Check check(
      "linear_weight_gradient_squares",
      checked_without_prologue("linear_weight_gradient_squares", inputs, attributes, 2), attributes,
      {}, {"dropout_rate", "dropout_site", "fallback", "layout", "norm"});
  std::vector<TensorType> types = linear_weight_gradient_types(check);
  types.push_back(typed(DType::kFloat64, {}));
  return types;
}

// Products take operands of one dtype: the gradient of an f32 output of bf16 operands is cast
// first. The bias takes the gradient as it comes.
ir::Gradients linear_gradient(ir::GraphBuilder& builder, const ir::Node& node,
                              OutputGradients of_outputs) {
  if (!of_outputs[0]) return ir::Gradients(node.inputs.size());
  require_no_prologue(node);
  const ir::ValueId x = node.inputs[0], weight = node.inputs[1];
  const DType dtype = builder.type(x).dtype;
  const ir::ValueId dy = cast_to(builder, *of_outputs[0], dtype);
  ir::Gradients gradients;
  gradients.push_back(builder.add1("linear_input_gradient", {dy, weight},
                                   {{"output_dtype", std::string(to_string(dtype))}}));
  const WeightPhase phase(builder);
  gradients.push_back(builder.add1("linear_weight_gradient", {x, dy}));
  if (node.inputs.size() == 3) gradients.push_back(builder.add1("sum_rows", {*of_outputs[0]}));
  return gradients;
}

ir::Cost linear_cost(ir::Types inputs, ir::Types outputs, const spec::Attributes&) {
  return streaming_cost(inputs, outputs,
                        product({2, inputs[0].dim(0), inputs[1].dim(0), inputs[1].dim(1)}));
}

ir::Cost linear_weight_gradient_cost(ir::Types inputs, ir::Types outputs, const spec::Attributes&) {
  return streaming_cost(inputs, outputs,
                        product({2, inputs[0].dim(0), inputs[0].dim(1), inputs[1].dim(1)}));
}

}  // namespace

const ir::OpSchema kLinear{
    .name = "linear",
    .product = spec::find_product("linear"),
    .min_inputs = 2,
    .max_inputs = 7,
    .signature = "(x [T,K], weight [N,K], bias? f32[N], norm?..., draws? i32[3]) -> [T,N]",
    .infer = infer_linear,
    .gradient = linear_gradient,
    .cost = linear_cost};

const ir::OpSchema kLinearInputGradient{.name = "linear_input_gradient",
                                        .product = spec::find_product("linear_input_gradient"),
                                        .min_inputs = 2,
                                        .max_inputs = 2,
                                        .signature = "(dy [T,N], weight [N,K]) -> [T,K]",
                                        .infer = infer_linear_input_gradient,
                                        .cost = linear_cost};

const ir::OpSchema kLinearWeightGradient{
    .name = "linear_weight_gradient",
    .product = spec::find_product("linear_weight_gradient"),
    .min_inputs = 2,
    .max_inputs = 7,
    .signature = "(x [T,K], dy [T,N], into? f32[M,K], norm?..., draws? i32[3]) -> f32[N,K]",
    .infer = infer_linear_weight_gradient,
    .cost = linear_weight_gradient_cost,
    .must_alias = weight_gradient_aliases,
    .can_accumulate = true};

const ir::OpSchema kLinearWeightGradientSquares{
    .name = "linear_weight_gradient_squares",
    .product = spec::find_product("linear_weight_gradient_squares"),
    .min_inputs = 2,
    .max_inputs = 6,
    .num_outputs = 2,
    .signature = "(x [T,K], dy [T,N], norm?..., draws? i32[3]) -> f32[N,K], f64[]",
    .infer = infer_linear_weight_gradient_squares,
    .cost = linear_weight_gradient_cost,
    .can_accumulate = true};

}  // namespace anabatic::ops
