// SPDX-License-Identifier: Apache-2.0
#include "ops/swiglu.h"

#include <fmt/core.h>

#include "base/error.h"
#include "ops/build.h"
#include "ops/cast.h"
#include "ops/check.h"

namespace anabatic::ops {
namespace {

std::vector<TensorType> infer(ir::Types inputs, const spec::Attributes& attributes) {
  const Check check("swiglu", inputs, attributes);
  const Operand gate = check.floating(0, "gate", 2);
  check.same_type(check.floating(1, "up", 2), gate);
  if (check.num_inputs() == 2) return {*gate.type};
  if (check.num_inputs() == 3) check.fail("expected weights beside row_map, got none");
  const Operand row_map = check.i32(2, "row_map", 1), weights = check.wide(3, "weights", 2);
  check.size(row_map, 0, product({weights.size(0), weights.size(1)}));
  check.same_dim(row_map, 0, gate, 0);
  return {*gate.type};
}

std::vector<TensorType> infer_gradient(ir::Types inputs, const spec::Attributes& attributes) {
  const Check check("swiglu_gradient", inputs, attributes);
  const Operand gate = check.floating(0, "gate", 2);
  check.same_type(check.floating(1, "up", 2), gate);
  check.same_type(check.floating(2, "dy", 2), gate);
  return {*gate.type, *gate.type};
}

ir::Gradients gradient(ir::GraphBuilder& builder, const ir::Node& node,
                       OutputGradients of_outputs) {
  ANABATIC_CHECK(node.inputs.size() == 2, "[swiglu] rows times weights have no gradient here");
  if (!of_outputs[0]) return ir::Gradients(2);
  const auto d = builder.add("swiglu_gradient", {node.inputs[0], node.inputs[1], *of_outputs[0]});
  return {d[0], d[1]};
}

ir::Cost cost(ir::Types inputs, ir::Types outputs, const spec::Attributes&) {
  return elementwise_cost(inputs, outputs, 5);
}

ir::Cost gradient_cost(ir::Types inputs, ir::Types outputs, const spec::Attributes&) {
  return elementwise_cost(inputs, outputs, 11);
}

// Behind products.
enum Input { kX, kGateWeight, kUpWeight, kOffsets, kRowMap, kWeights };

// Both weights [N,K] or [E,N,K] fit x.
void check_weights(const Check& check, const Operand& x, int ndim) {
  const Operand gate = check.floating(kGateWeight, "gate_weight", ndim);
  check.same_dtype(x, gate);
  check.right_operand(gate, false);
  check.same_dim(x, 1, gate, ndim - 1);
  check.same_type(check.floating(kUpWeight, "up_weight", ndim), gate);
}

void check_slots(const Check& check, const Operand& row_map, const Operand& weights) {
  check.size(row_map, 0, product({weights.size(0), weights.size(1)}));
}

TensorType infer_dense(const Check& check) {
  const Operand x = check.floating(kX, "x", 2);
  check_weights(check, x, 2);
  return typed(x.dtype(), {x.dim(0), check.floating(kGateWeight, "gate_weight", 2).dim(0)});
}

TensorType infer_grouped(const Check& check) {
  const Operand x = check.floating(kX, "x", 2);
  check_weights(check, x, 3);
  const Operand gate = check.floating(kGateWeight, "gate_weight", 3);
  check.size(check.i32(kOffsets, "offsets", 1), 0, gate.size(0) + 1);
  if (check.num_inputs() > kWeights)
    check_slots(check, check.i32(kRowMap, "row_map", 1), check.wide(kWeights, "weights", 2));
  else if (check.num_inputs() > kRowMap && !check.has("top_k"))
    check.fail("expected 'top_k' or weights beside row_map, got neither");
  if (check.num_inputs() > kRowMap && !check.has("top_k")) {
    check.same_dim(check.i32(kRowMap, "row_map", 1), 0, x, 0);
    return typed(x.dtype(), {x.dim(0), gate.dim(1)});
  }
  return typed(x.dtype(), {check.gathered_rows(x, kRowMap), gate.dim(1)});
}

enum GradientInput { kDy, kWeight, kGradientOffsets };

// Gate and up among the inputs of a gradient: two matrices, or, with `block`, codes and scales of
// each.
struct GateAndUp {
  TensorType type;  // of either, whole
  int end;          // the input behind them
};

// dy [R,N] · weight fits gate and up [R,F], which begin at input `first`; `rows` of dy.
GateAndUp check_gradient(const Check& check, int ndim, int first) {
  const Operand dy = check.floating(kDy, "dy", 2), weight = check.floating(kWeight, "weight", ndim);
  check.same_dtype(dy, weight);
  check.right_operand_of_gradient(weight);
  check.same_dim(dy, 1, weight, ndim - 2);
  if (check.has("block")) {
    const Operand gate = check.i8(first, "gate_codes", 2);
    check.same_dim(gate, 1, weight, ndim - 1);
    const TensorType type = typed(dy.dtype(), {gate.dim(0), gate.dim(1)});
    const TensorType scales = code_types(type, check.positive_int("block"))[1];
    check.same_type(check.i8(first + 2, "up_codes", 2), gate);
    check.same_type(check.floating(first + 1, "gate_scales", 2), {"scales of gate", &scales});
    check.same_type(check.floating(first + 3, "up_scales", 2), {"scales of up", &scales});
    return {type, first + 4};
  }
  const Operand gate = check.floating(first, "gate", 2);
  check.same_dtype(dy, gate);
  check.same_dim(gate, 1, weight, ndim - 1);
  check.same_type(check.floating(first + 1, "up", 2), gate);
  return {*gate.type, first + 2};
}

void check_num_inputs(const Check& check, int expected) {
  if (check.num_inputs() != expected)
    check.fail(fmt::format("expected {} inputs, got {}", expected, check.num_inputs()));
}

// The activation behind the gradients, where it is asked for.
std::vector<TensorType> with_activation(std::vector<TensorType> gradients, const Check& check) {
  if (check.has("activation")) gradients.push_back(TensorType(gradients[0]));
  return gradients;
}

std::vector<TensorType> infer_dense_gradient(ir::Types inputs, const spec::Attributes& attributes) {
  const Check check("linear_swiglu_gradient", inputs, attributes, {}, {"activation", "block"});
  const auto [gate, end] = check_gradient(check, 2, kGradientOffsets);
  check_num_inputs(check, end);
  check.same_dim(check.floating(kDy, "dy", 2), 0, {"gate", &gate}, 0);
  return with_activation({gate, gate}, check);
}

GateAndUp check_grouped_gradient(const Check& check) {
  GateAndUp result = check_gradient(check, 3, kGradientOffsets + 1);
  check.size(check.i32(kGradientOffsets, "offsets", 1), 0,
             check.floating(kWeight, "weight", 3).size(0) + 1);
  return result;
}

std::vector<TensorType> infer_grouped_gradient(ir::Types inputs,
                                               const spec::Attributes& attributes) {
  const Check check("grouped_linear_swiglu_gradient", inputs, attributes, {},
                    {"slices", "activation", "block"});
  const auto [gate, end] = check_grouped_gradient(check);
  check_num_inputs(check, end);
  check.same_dim(check.floating(kDy, "dy", 2), 0, {"gate", &gate}, 0);
  return with_activation({gate, gate}, check);
}

std::vector<TensorType> infer_gradient_with_weights(ir::Types inputs,
                                                    const spec::Attributes& attributes) {
  const Check check("grouped_linear_swiglu_gradient_with_weights", inputs, attributes, {},
                    {"slices", "activation", "block"});
  const auto [gate, end] = check_grouped_gradient(check);
  check_num_inputs(check, end + 2);
  const Operand row_map = check.i32(end, "row_map", 1), weights = check.wide(end + 1, "weights", 2);
  check_slots(check, row_map, weights);
  check.same_dim(row_map, 0, {"gate", &gate}, 0);
  check.same_dim(check.floating(kDy, "dy", 2), 0, weights, 0);
  return with_activation({gate, gate, *weights.type}, check);
}

ir::Cost product_cost(ir::Types inputs, ir::Types outputs, const spec::Attributes&) {
  const std::int64_t rows = outputs[0].dim(0), width = outputs[0].dim(1);
  return streaming_cost(inputs, outputs,
                        product({4, rows, width, inputs[kX].dim(1)}) + product({5, rows, width}));
}

ir::Cost product_gradient_cost(ir::Types inputs, ir::Types outputs, const spec::Attributes&) {
  const std::int64_t rows = outputs[0].dim(0), width = outputs[0].dim(1);
  return streaming_cost(inputs, outputs,
                        product({2, rows, width, inputs[kDy].dim(1)}) + product({11, rows, width}));
}

// With gate and up in eight bits behind the result.
std::vector<TensorType> with_codes(const TensorType& type, const Check& check) {
  const auto [codes, scales] = code_types(type, check.positive_int("block"));
  return {type, codes, scales, codes, scales};
}

}  // namespace

const ir::OpSchema kSwiglu{.name = "swiglu",
                           .min_inputs = 2,
                           .max_inputs = 4,
                           .signature =
                               "(gate [R,F], up [R,F], row_map? i32[R], weights? "
                               "f32[T,k]) -> like gate",
                           .infer = infer,
                           .gradient = gradient,
                           .cost = cost,
                           .may_alias = {0}};

const ir::OpSchema kSwigluGradient{.name = "swiglu_gradient",
                                   .min_inputs = 3,
                                   .max_inputs = 3,
                                   .num_outputs = 2,
                                   .signature = "(gate [R,F], up [R,F], dy [R,F]) -> dgate, dup",
                                   .infer = infer_gradient,
                                   .cost = gradient_cost,
                                   .may_alias = {0, 1}};

const ir::OpSchema kLinearSwiglu{
    .name = "linear_swiglu",
    .min_inputs = 3,
    .max_inputs = 3,
    .signature = "(x [T,K], gate_weight [N,K], up_weight [N,K]) -> [T,N] like x",
    .infer = [](ir::Types inputs, const spec::Attributes& attributes) -> std::vector<TensorType> {
      return {infer_dense(Check("linear_swiglu", inputs, attributes))};
    },
    .cost = product_cost};

const ir::OpSchema kLinearSwigluWithCodes{
    .name = "linear_swiglu_with_codes",
    .min_inputs = 3,
    .max_inputs = 3,
    .num_outputs = 5,
    .signature =
        "(x [T,K], gate_weight [N,K], up_weight [N,K]) -> [T,N] like x, gate_codes i8[T,N], "
        "gate_scales bf16[T,blocks], up_codes, up_scales",
    .infer = [](ir::Types inputs, const spec::Attributes& attributes) -> std::vector<TensorType> {
      const Check check("linear_swiglu_with_codes", inputs, attributes, {"block"});
      return with_codes(infer_dense(check), check);
    },
    .cost = product_cost};

const ir::OpSchema kLinearSwigluWithProducts{
    .name = "linear_swiglu_with_products",
    .min_inputs = 3,
    .max_inputs = 3,
    .num_outputs = 3,
    .signature =
        "(x [T,K], gate_weight [N,K], up_weight [N,K]) -> [T,N] like x, gate [T,N], up [T,N]",
    .infer = [](ir::Types inputs, const spec::Attributes& attributes) -> std::vector<TensorType> {
      const TensorType type = infer_dense(Check("linear_swiglu_with_products", inputs, attributes));
      return {type, type, type};
    },
    .cost = product_cost};

const ir::OpSchema kGroupedLinearSwiglu{
    .name = "grouped_linear_swiglu",
    .min_inputs = 4,
    .max_inputs = 6,
    .signature =
        "(x [R,K], gate_weight [E,N,K], up_weight [E,N,K], offsets i32[E+1], row_map? "
        "i32[R], weights? f32[T,k]) -> [R,N] like x",
    .infer = [](ir::Types inputs, const spec::Attributes& attributes) -> std::vector<TensorType> {
      return {infer_grouped(Check("grouped_linear_swiglu", inputs, attributes, {}, {"top_k"}))};
    },
    .cost = product_cost};

const ir::OpSchema kGroupedLinearSwigluWithCodes{
    .name = "grouped_linear_swiglu_with_codes",
    .min_inputs = 4,
    .max_inputs = 6,
    .num_outputs = 5,
    .signature =
        "(x [R,K], gate_weight [E,N,K], up_weight [E,N,K], offsets i32[E+1], row_map? "
        "i32[R], weights? f32[T,k]) -> [R,N] like x, gate_codes i8[R,N], gate_scales "
        "bf16[R,blocks], up_codes, up_scales",
    .infer = [](ir::Types inputs, const spec::Attributes& attributes) -> std::vector<TensorType> {
      const Check check("grouped_linear_swiglu_with_codes", inputs, attributes, {"block"},
                        {"top_k"});
      return with_codes(infer_grouped(check), check);
    },
    .cost = product_cost};

const ir::OpSchema kGroupedLinearSwigluWithProducts{
    .name = "grouped_linear_swiglu_with_products",
    .min_inputs = 4,
    .max_inputs = 6,
    .num_outputs = 3,
    .signature =
        "(x [R,K], gate_weight [E,N,K], up_weight [E,N,K], offsets i32[E+1], row_map? "
        "i32[R], weights? f32[T,k]) -> [R,N] like x, gate [R,N], up [R,N]",
    .infer = [](ir::Types inputs, const spec::Attributes& attributes) -> std::vector<TensorType> {
      const TensorType type = infer_grouped(
          Check("grouped_linear_swiglu_with_products", inputs, attributes, {}, {"top_k"}));
      return {type, type, type};
    },
    .cost = product_cost};

const ir::OpSchema kLinearSwigluGradient{
    .name = "linear_swiglu_gradient",
    .min_inputs = 4,
    .max_inputs = 6,
    .num_outputs = ir::kAnyNumber,
    .signature =
        "(dy [T,N], weight [N,F], gate [T,F], up [T,F], with block codes and scales of both) -> "
        "dgate, dup, activation?",
    .infer = infer_dense_gradient,
    .cost = product_gradient_cost,
    .may_alias = {2, 3}};

const ir::OpSchema kGroupedLinearSwigluGradient{
    .name = "grouped_linear_swiglu_gradient",
    .min_inputs = 5,
    .max_inputs = 7,
    .num_outputs = ir::kAnyNumber,
    .signature =
        "(dy [R,N], weight [E,N,F], offsets i32[E+1], gate [R,F], up [R,F], with block codes and "
        "scales of both) -> dgate, dup, activation?",
    .infer = infer_grouped_gradient,
    .cost = product_gradient_cost,
    .may_alias = {3, 4},
    .most_slices = num_experts};

const ir::OpSchema kGroupedLinearSwigluGradientWithWeights{
    .name = "grouped_linear_swiglu_gradient_with_weights",
    .min_inputs = 7,
    .max_inputs = 9,
    .num_outputs = ir::kAnyNumber,
    .signature =
        "(dy [T,N], weight [E,N,F], offsets i32[E+1], gate [R,F], up [R,F], with block codes and "
        "scales of both, row_map i32[R], weights f32[T,k]) -> dgate, dup, dweights f32[T,k], "
        "activation?",
    .infer = infer_gradient_with_weights,
    .cost = product_gradient_cost,
    .may_alias = {3, 4, -1},
    .most_slices = num_experts};

}  // namespace anabatic::ops
