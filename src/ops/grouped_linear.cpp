// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <string>

#include "base/error.h"
#include "ops/build.h"
#include "ops/check.h"
#include "ops/linear.h"
#include "ops/product_bias.h"
#include "spec/product.h"
#include "spec/product_bias.h"

namespace anabatic::ops {
namespace {

void check_offsets(const Check& check, const Operand& offsets, const Operand& weight) {
  check.size(offsets, 0, weight.size(0) + 1);
}

constexpr int kRowMap = 3;

std::vector<TensorType> infer_grouped_linear(ir::Types inputs, const spec::Attributes& attributes) {
  const Check check("grouped_linear", checked_without_biases("grouped_linear", inputs, attributes),
                    attributes, {}, {"bias", "fallback", "top_k"});
  const Operand x = check.floating(0, "x", 2), weight = check.weight(1, "weight", 3, x);
  check.right_operand(weight, false);
  check.fallback(weight);
  check.same_dim(x, 1, weight, 2);
  check_offsets(check, check.i32(2, "offsets", 1), weight);
  return {typed(x.dtype(), {check.gathered_rows(x, kRowMap), weight.dim(1)})};
}

std::vector<TensorType> infer_grouped_linear_input_gradient(ir::Types inputs,
                                                            const spec::Attributes& attributes) {
  const Check check("grouped_linear_input_gradient", inputs, attributes, {},
                    {spec::kPackedFormat, "slices"});
  const Operand dy = check.floating(0, "dy", 2), weight = check.weight(1, "weight", 3, dy);
  check.right_operand_of_gradient(weight);
  check.same_dim(dy, 1, weight, 1);
  check_offsets(check, check.i32(2, "offsets", 1), weight);
  return {typed(dy.dtype(), {dy.dim(0), weight.dim(2)})};
}

std::vector<TensorType> grouped_linear_weight_gradient_types(const Check& check) {
  const Operand x = check.floating(0, "x", 2), dy = check.floating(1, "dy", 2),
                offsets = check.i32(2, "offsets", 1);
  check.gradient_dtype_of(dy, x);
  check.fallback_of_gradient(x);
  if (check.num_inputs() > kRowMap + (is_written_into(check.attributes()) ? 1 : 0)) {
    const std::string& gathered = check.string("gathered");
    if (gathered != "x" && gathered != "dy")
      check.fail("expected 'gathered' to be x or dy, got '" + gathered + "'");
    const Operand& other = gathered == "x" ? dy : x;
    check.gathered_rows(gathered == "x" ? x : dy, kRowMap);
    check.same_dim(check.i32(kRowMap, "row_map", 1), 0, other, 0);
  } else {
    check.same_dim(x, 0, dy, 0);
  }
  if (offsets.size(0) < 2)
    check.fail("expected offsets of at least one expert, got " + to_string(*offsets.type));
  return {
      laid_out(check, typed(wide_dtype(x.dtype()), {offsets.size(0) - 1, dy.dim(1), x.dim(1)}))};
}

// Where the input `into` of a weight gradient is, if it is there.
int into_at(const spec::Attributes& attributes) {
  return attributes.contains("gathered") ? kRowMap + 1 : kRowMap;
}

std::vector<TensorType> infer_grouped_linear_weight_gradient(ir::Types inputs,
                                                             const spec::Attributes& attributes) {
  const Check check("grouped_linear_weight_gradient", inputs, attributes, {},
                    {"column_step", "fallback", "first_column", "first_row", "gathered", "layout",
                     "of_rows", "output_dtype", "top_k"});
  return {placed(check, grouped_linear_weight_gradient_types(check)[0], into_at(attributes))};
}

ir::Aliases grouped_weight_gradient_aliases(const spec::Attributes& attributes) {
  if (!is_written_into(attributes)) return {};
  return into_at(attributes) == kRowMap ? ir::always<kRowMap>(attributes)
                                        : ir::always<kRowMap + 1>(attributes);
}

std::vector<TensorType> infer_grouped_linear_weight_gradient_squares(
    ir::Types inputs, const spec::Attributes& attributes) {
  std::vector<TensorType> types = grouped_linear_weight_gradient_types(
      Check("grouped_linear_weight_gradient_squares", inputs, attributes, {},
            {"fallback", "gathered", "layout", "top_k"}));
  types.push_back(typed(DType::kFloat64, {}));
  return types;
}

ir::Gradients grouped_linear_gradient(ir::GraphBuilder& builder, const ir::Node& node,
                                      OutputGradients of_outputs) {
  if (!of_outputs[0]) return ir::Gradients(node.inputs.size());
  ANABATIC_CHECK(spec::without_biases(node.inputs, node.attributes).size() == kRowMap,
                 "[grouped_linear] rows are gathered behind differentiate");
  const ir::ValueId x = node.inputs[0], weight = node.inputs[1], offsets = node.inputs[2];
  const ir::ValueId dy = *of_outputs[0];
  const ir::ValueId dx = builder.add1("grouped_linear_input_gradient", {dy, weight, offsets});
  const WeightPhase phase(builder);
  const ir::ValueId dw = builder.add1("grouped_linear_weight_gradient", {x, dy, offsets});
  ir::Gradients gradients{dx, dw, std::nullopt};
  if (spec::num_biases(node.attributes) > 0)
    gradients.push_back(builder.add1("sum_rows", {dy, offsets}));
  return gradients;
}

ir::Cost grouped_linear_cost(ir::Types inputs, ir::Types outputs, const spec::Attributes&) {
  return streaming_cost(inputs, outputs,
                        product({2, outputs[0].dim(0), inputs[1].dim(1), inputs[1].dim(2)}));
}

ir::Cost grouped_linear_weight_gradient_cost(ir::Types inputs, ir::Types outputs,
                                             const spec::Attributes&) {
  const std::int64_t rows = std::max(inputs[0].dim(0), inputs[1].dim(0));
  return streaming_cost(inputs, outputs, product({2, rows, inputs[0].dim(1), inputs[1].dim(1)}));
}

}  // namespace

const ir::OpSchema kGroupedLinear{
    .name = "grouped_linear",
    .product = spec::find_product("grouped_linear"),
    .min_inputs = 3,
    .max_inputs = 5,
    .signature =
        "(x [R,K], weight [E,N,K], offsets i32[E+1], row_map? i32[R], bias? f32[E,N]) -> [R,N] "
        "like x",
    .infer = infer_grouped_linear,
    .gradient = grouped_linear_gradient,
    .cost = grouped_linear_cost};

const ir::OpSchema kGroupedLinearInputGradient{
    .name = "grouped_linear_input_gradient",
    .product = spec::find_product("grouped_linear_input_gradient"),
    .min_inputs = 3,
    .max_inputs = 3,
    .signature = "(dy [R,N], weight [E,N,K], offsets i32[E+1]) -> [R,K] like dy",
    .infer = infer_grouped_linear_input_gradient,
    .cost = grouped_linear_cost,
    .most_slices = most_slices_of_experts};

const ir::OpSchema kGroupedLinearWeightGradient{
    .name = "grouped_linear_weight_gradient",
    .product = spec::find_product("grouped_linear_weight_gradient"),
    .min_inputs = 3,
    .max_inputs = 5,
    .signature =
        "(x [R,K], dy [R,N], offsets i32[E+1], row_map? i32[R], into? f32[E,M,K]) -> f32[E,N,K]",
    .infer = infer_grouped_linear_weight_gradient,
    .cost = grouped_linear_weight_gradient_cost,
    .must_alias = grouped_weight_gradient_aliases,
    .can_accumulate = true};

const ir::OpSchema kGroupedLinearWeightGradientSquares{
    .name = "grouped_linear_weight_gradient_squares",
    .product = spec::find_product("grouped_linear_weight_gradient_squares"),
    .min_inputs = 3,
    .max_inputs = 4,
    .num_outputs = 2,
    .signature = "(x [R,K], dy [R,N], offsets i32[E+1], row_map? i32[R]) -> f32[E,N,K], f64[]",
    .infer = infer_grouped_linear_weight_gradient_squares,
    .cost = grouped_linear_weight_gradient_cost,
    .can_accumulate = true};

}  // namespace anabatic::ops
