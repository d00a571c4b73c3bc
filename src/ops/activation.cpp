// SPDX-License-Identifier: Apache-2.0
#include "ops/activation.h"

#include <fmt/core.h>

#include <array>
#include <initializer_list>
#include <string>

#include "base/error.h"
#include "ops/build.h"
#include "ops/cast.h"
#include "ops/check.h"
#include "ops/norms/product_prologue.h"
#include "ops/product_bias.h"
#include "spec/product.h"

namespace anabatic::ops {
namespace {

using Keys = std::initializer_list<std::string_view>;

constexpr const char* kOperandNames[] = {"gate", "up"};
constexpr std::size_t kMostDenseInputs = 3;  // of a product: x, two weights

// Checks of an op with the attribute `activation`.
Check checked_activation(std::string_view op, ir::Types inputs, const spec::Attributes& attributes,
                         Keys required = {}, Keys optional = {}) {
  std::vector<std::string_view> all_required{"activation"}, all_optional{"alpha", "limit"};
  all_required.insert(all_required.end(), required);
  all_optional.insert(all_optional.end(), optional);
  return {op, inputs, attributes, all_required, all_optional};
}

void check_num_inputs(const Check& check, int expected) {
  if (check.num_inputs() != expected)
    check.fail(fmt::format("expected {} inputs, got {}", expected, check.num_inputs()));
}

void check_slots(const Check& check, const Operand& row_map, const Operand& weights) {
  check.size(row_map, 0, product({weights.size(0), weights.size(1)}));
}

// The operands of the activation from input `first` on, all of one type.
Operand check_activated(const Check& check, int first, int count) {
  const Operand gate = check.floating(first, kOperandNames[0], 2);
  for (int i = 1; i < count; ++i)
    check.same_type(check.floating(first + i, kOperandNames[i], 2), gate);
  return gate;
}

std::vector<TensorType> infer_activation(ir::Types inputs, const spec::Attributes& attributes) {
  const Check check = checked_activation("activation", inputs, attributes);
  const int count = num_operands(spec::activation_of(attributes));
  if (check.num_inputs() < count) check_num_inputs(check, count);
  const Operand gate = check_activated(check, 0, count);
  if (check.num_inputs() == count) return {*gate.type};
  if (check.num_inputs() == count + 1) check.fail("expected weights with row_map, got none");
  check_num_inputs(check, count + 2);
  const Operand row_map = check.i32(count, "row_map", 1),
                weights = check.wide(count + 1, "weights", 2);
  check_slots(check, row_map, weights);
  check.same_dim(row_map, 0, gate, 0);
  return {*gate.type};
}

std::vector<TensorType> infer_activation_gradient(ir::Types inputs,
                                                  const spec::Attributes& attributes) {
  const Check check = checked_activation("activation_gradient", inputs, attributes);
  const int count = num_operands(spec::activation_of(attributes));
  check_num_inputs(check, count + 1);
  const Operand gate = check_activated(check, 0, count);
  const Operand dy = check.floating(count, "dy", 2);
  check.gradient_of(dy, gate);
  return std::vector<TensorType>(static_cast<std::size_t>(count), *dy.type);
}

ir::Gradients activation_gradient(ir::GraphBuilder& builder, const ir::Node& node,
                                  OutputGradients of_outputs) {
  const auto count = static_cast<std::size_t>(num_operands(spec::activation_of(node.attributes)));
  ANABATIC_CHECK(node.inputs.size() == count,
                 "[activation] rows times weights have no gradient here");
  ir::Gradients gradients(count);
  if (!of_outputs[0]) return gradients;
  std::vector<ir::ValueId> inputs = node.inputs;
  inputs.push_back(*of_outputs[0]);
  const auto d = builder.add("activation_gradient", std::move(inputs), node.attributes);
  std::copy(d.begin(), d.end(), gradients.begin());
  return gradients;
}

// Both weights [N,K] or [E,N,K] fit x; gives the first.
Operand check_weights(const Check& check, const Operand& x, const spec::ActivationInputs& at,
                      int ndim) {
  const Operand gate = check.weight(at.weight(0), "gate_weight", ndim, x);
  check.right_operand(gate, false);
  check.fallback(gate);
  check.same_dim(x, 1, gate, ndim - 1);
  for (int i = 1; i < at.num_weights; ++i)
    check.same_type(check.weight(at.weight(i), "up_weight", ndim, x), gate);
  return gate;
}

TensorType infer_dense(const Check& check, const spec::ActivationInputs& at) {
  check_num_inputs(check, at.offsets());
  const Operand x = check.floating(at.x(), "x", 2);
  return typed(x.dtype(), {x.dim(0), check_weights(check, x, at, 2).dim(0)});
}

TensorType infer_grouped(const Check& check, const spec::ActivationInputs& at) {
  if (check.num_inputs() <= at.offsets()) check_num_inputs(check, at.offsets() + 1);
  const Operand x = check.floating(at.x(), "x", 2);
  const Operand gate = check_weights(check, x, at, 3);
  check.size(check.i32(at.offsets(), "offsets", 1), 0, gate.size(0) + 1);
  if (check.num_inputs() > at.row_weights())
    check_slots(check, check.i32(at.row_map(), "row_map", 1),
                check.wide(at.row_weights(), "weights", 2));
  else if (check.num_inputs() > at.row_map() && !check.has("top_k"))
    check.fail("expected 'top_k' or weights with row_map, got neither");
  if (check.num_inputs() > at.row_map() && !check.has("top_k")) {
    check.same_dim(check.i32(at.row_map(), "row_map", 1), 0, x, 0);
    return typed(x.dtype(), {x.dim(0), gate.dim(1)});
  }
  return typed(x.dtype(), {check.gathered_rows(x, at.row_map()), gate.dim(1)});
}

// What a product leaves of the activation's operands in addition to its result.
enum class Keeps { kNothing, kProducts, kInt8 };

template <bool kGrouped, Keeps kKeeps>
std::vector<TensorType> infer_product(std::string_view op, ir::Types inputs,
                                      const spec::Attributes& attributes) {
  inputs = kGrouped ? checked_without_biases(op, inputs, attributes)
                    : checked_without_prologue(op, inputs, attributes, kMostDenseInputs);
  const Check check = [&] {
    if constexpr (kGrouped && kKeeps == Keeps::kInt8)
      return checked_activation(op, inputs, attributes, {"block"}, {"bias", "fallback", "top_k"});
    else if constexpr (kKeeps == Keeps::kInt8)
      return checked_activation(op, inputs, attributes, {"block"}, {"fallback", "norm"});
    else if constexpr (kGrouped)
      return checked_activation(op, inputs, attributes, {}, {"bias", "fallback", "top_k"});
    else
      return checked_activation(op, inputs, attributes, {}, {"fallback", "norm"});
  }();
  const spec::ActivationInputs at = spec::activation_inputs(attributes);
  const TensorType type = kGrouped ? infer_grouped(check, at) : infer_dense(check, at);
  std::vector<TensorType> outputs{type};
  for (int i = 0; i < at.num_weights; ++i) {
    if (kKeeps == Keeps::kProducts) outputs.push_back(type);
    if (kKeeps != Keeps::kInt8) continue;
    outputs.push_back(in_int8(type, check.positive_int("block")));
  }
  return outputs;
}

// The type of each operand of the activation, not quantised. dy [R,N] · weight fits them, [R,F].
TensorType check_gradient(const Check& check, const spec::ActivationGradientInputs& at, int ndim) {
  const Operand dy = check.floating(at.dy(), "dy", 2),
                weight = check.weight(at.weight(), "weight", ndim, dy);
  check.right_operand_of_gradient(weight);
  check.same_dim(dy, 1, weight, ndim - 2);
  if (at.is_grouped) check.size(check.i32(at.offsets(), "offsets", 1), 0, weight.size(0) + 1);
  if (!check.is_quantized(at.operand(0))) {
    const Operand gate = check_activated(check, at.operand(0), at.num_operands);
    check.gradient_dtype_of(dy, gate);
    check.same_dim(gate, 1, weight, ndim - 1);
    return *gate.type;
  }
  const Operand gate = check.in_int8(at.operand(0), kOperandNames[0]);
  check.same_dim(gate, 1, weight, ndim - 1);
  for (int i = 1; i < at.num_operands; ++i)
    check.same_type(check.in_int8(at.operand(i), kOperandNames[i]), gate);
  return typed(dy.dtype(), {gate.dim(0), gate.dim(1)});
}

// The rows: dense, of experts, or of experts and times weights.
enum class Form { kDense, kGrouped, kWeighted };

template <Form kForm>
std::vector<TensorType> infer_product_gradient(std::string_view op, ir::Types inputs,
                                               const spec::Attributes& attributes) {
  const Check check = kForm == Form::kDense
                          ? checked_activation(op, inputs, attributes, {}, {"with_activation"})
                          : checked_activation(op, inputs, attributes, {},
                                               {spec::kPackedFormat, "slices", "with_activation"});
  const spec::ActivationGradientInputs at =
      spec::activation_gradient_inputs(attributes, kForm != Form::kDense);
  check_num_inputs(check, kForm == Form::kWeighted ? at.row_weights() + 1 : at.row_map());
  const TensorType gate = check_gradient(check, at, kForm == Form::kDense ? 2 : 3);
  const Operand dy = check.floating(at.dy(), "dy", 2);
  std::vector<TensorType> outputs(static_cast<std::size_t>(at.num_operands),
                                  with_dtype(gate, dy.dtype()));
  if (kForm == Form::kWeighted) {
    const Operand row_map = check.i32(at.row_map(), "row_map", 1),
                  weights = check.wide(at.row_weights(), "weights", 2);
    check_slots(check, row_map, weights);
    check.same_dim(row_map, 0, {"gate", &gate}, 0);
    check.same_dim(dy, 0, weights, 0);
    outputs.push_back(*weights.type);
  } else {
    check.same_dim(dy, 0, {"gate", &gate}, 0);
  }
  if (check.has("with_activation")) outputs.push_back(gate);
  return outputs;
}

ir::Cost product_cost(ir::Types inputs, ir::Types outputs, const spec::Attributes& attributes) {
  const std::int64_t rows = outputs[0].dim(0), width = outputs[0].dim(1),
                     count = num_operands(spec::activation_of(attributes));
  return streaming_cost(
      inputs, outputs,
      product({2 * count, rows, width, inputs[0].dim(1)}) + product({5, rows, width}));
}

ir::Cost product_gradient_cost(ir::Types inputs, ir::Types outputs, const spec::Attributes&) {
  const std::int64_t rows = outputs[0].dim(0), width = outputs[0].dim(1);
  return streaming_cost(inputs, outputs,
                        product({2, rows, width, inputs[0].dim(1)}) + product({11, rows, width}));
}

// The gradients of the operands may take the operands' bytes, unless these are quantised. They
// begin at input `kFirst`.
template <int kFirst>
ir::Aliases aliases(const spec::Attributes& attributes) {
  static constexpr std::array<int, 2> kBoth{kFirst, kFirst + 1};
  return std::span(kBoth).first(
      static_cast<std::size_t>(num_operands(spec::activation_of(attributes))));
}

}  // namespace

const ir::OpSchema kActivation{.name = "activation",
                               .min_inputs = 1,
                               .max_inputs = 4,
                               .signature =
                                   "(gate [R,F], up? [R,F], row_map? i32[R], weights? "
                                   "f32[T,k]) -> like gate",
                               .infer = infer_activation,
                               .gradient = activation_gradient,
                               .cost = cost_an_element<5>,
                               .may_alias = ir::always<0>};

const ir::OpSchema kActivationGradient{
    .name = "activation_gradient",
    .min_inputs = 2,
    .max_inputs = 3,
    .num_outputs = ir::kAnyNumber,
    .signature = "(gate [R,F], up? [R,F], dy [R,F]) -> dgate, dup?",
    .infer = infer_activation_gradient,
    .cost = cost_an_element<11>,
    .may_alias = aliases<0>};

const ir::OpSchema kLinearActivation{
    .name = "linear_activation",
    .product = spec::find_product("linear_activation"),
    .min_inputs = 2,
    .max_inputs = 6,
    .signature = "(x [T,K], gate_weight [N,K], up_weight? [N,K], norm?...) -> [T,N] like x",
    .infer =
        [](ir::Types inputs, const spec::Attributes& attributes) {
          return infer_product<false, Keeps::kNothing>("linear_activation", inputs, attributes);
        },
    .cost = product_cost};

const ir::OpSchema kLinearActivationWithCodes{
    .name = "linear_activation_with_codes",
    .product = spec::find_product("linear_activation_with_codes"),
    .min_inputs = 2,
    .max_inputs = 6,
    .num_outputs = ir::kAnyNumber,
    .signature =
        "(x [T,K], gate_weight [N,K], up_weight? [N,K], norm?...) -> [T,N] like x, gate "
        "i8_bf16_1xBLOCK[T,N], up?",
    .infer =
        [](ir::Types inputs, const spec::Attributes& attributes) {
          return infer_product<false, Keeps::kInt8>("linear_activation_with_codes", inputs,
                                                    attributes);
        },
    .cost = product_cost};

const ir::OpSchema kLinearActivationWithProducts{
    .name = "linear_activation_with_products",
    .product = spec::find_product("linear_activation_with_products"),
    .min_inputs = 2,
    .max_inputs = 6,
    .num_outputs = ir::kAnyNumber,
    .signature =
        "(x [T,K], gate_weight [N,K], up_weight? [N,K], norm?...) -> [T,N] like x, gate [T,N], "
        "up? [T,N]",
    .infer =
        [](ir::Types inputs, const spec::Attributes& attributes) {
          return infer_product<false, Keeps::kProducts>("linear_activation_with_products", inputs,
                                                        attributes);
        },
    .cost = product_cost};

const ir::OpSchema kGroupedLinearActivation{
    .name = "grouped_linear_activation",
    .product = spec::find_product("grouped_linear_activation"),
    .min_inputs = 3,
    .max_inputs = 8,
    .signature =
        "(x [R,K], gate_weight [E,N,K], up_weight? [E,N,K], offsets i32[E+1], row_map? "
        "i32[R], weights? f32[T,k], gate_bias? f32[E,N], up_bias?) -> [R,N] like x",
    .infer =
        [](ir::Types inputs, const spec::Attributes& attributes) {
          return infer_product<true, Keeps::kNothing>("grouped_linear_activation", inputs,
                                                      attributes);
        },
    .cost = product_cost};

const ir::OpSchema kGroupedLinearActivationWithCodes{
    .name = "grouped_linear_activation_with_codes",
    .product = spec::find_product("grouped_linear_activation_with_codes"),
    .min_inputs = 3,
    .max_inputs = 8,
    .num_outputs = ir::kAnyNumber,
    .signature =
        "(x [R,K], gate_weight [E,N,K], up_weight? [E,N,K], offsets i32[E+1], row_map? "
        "i32[R], weights? f32[T,k], gate_bias? f32[E,N], up_bias?) -> [R,N] like x, gate "
        "i8_bf16_1xBLOCK[R,N], up?",
    .infer =
        [](ir::Types inputs, const spec::Attributes& attributes) {
          return infer_product<true, Keeps::kInt8>("grouped_linear_activation_with_codes", inputs,
                                                   attributes);
        },
    .cost = product_cost};

const ir::OpSchema kGroupedLinearActivationWithProducts{
    .name = "grouped_linear_activation_with_products",
    .product = spec::find_product("grouped_linear_activation_with_products"),
    .min_inputs = 3,
    .max_inputs = 8,
    .num_outputs = ir::kAnyNumber,
    .signature =
        "(x [R,K], gate_weight [E,N,K], up_weight? [E,N,K], offsets i32[E+1], row_map? "
        "i32[R], weights? f32[T,k], gate_bias? f32[E,N], up_bias?) -> [R,N] like x, gate [R,N], "
        "up? [R,N]",
    .infer =
        [](ir::Types inputs, const spec::Attributes& attributes) {
          return infer_product<true, Keeps::kProducts>("grouped_linear_activation_with_products",
                                                       inputs, attributes);
        },
    .cost = product_cost};

const ir::OpSchema kLinearActivationGradient{
    .name = "linear_activation_gradient",
    .product = spec::find_product("linear_activation_gradient"),
    .min_inputs = 3,
    .max_inputs = 4,
    .num_outputs = ir::kAnyNumber,
    .signature =
        "(dy [T,N], weight [N,F], gate [T,F] or i8_bf16_1xBLOCK, up?) -> dgate, dup?, "
        "activation?",
    .infer =
        [](ir::Types inputs, const spec::Attributes& attributes) {
          return infer_product_gradient<Form::kDense>("linear_activation_gradient", inputs,
                                                      attributes);
        },
    .cost = product_gradient_cost,
    .may_alias = aliases<2>};

const ir::OpSchema kGroupedLinearActivationGradient{
    .name = "grouped_linear_activation_gradient",
    .product = spec::find_product("grouped_linear_activation_gradient"),
    .min_inputs = 4,
    .max_inputs = 5,
    .num_outputs = ir::kAnyNumber,
    .signature =
        "(dy [R,N], weight [E,N,F], offsets i32[E+1], gate [R,F] or i8_bf16_1xBLOCK, up?) -> "
        "dgate, dup?, activation?",
    .infer =
        [](ir::Types inputs, const spec::Attributes& attributes) {
          return infer_product_gradient<Form::kGrouped>("grouped_linear_activation_gradient",
                                                        inputs, attributes);
        },
    .cost = product_gradient_cost,
    .may_alias = aliases<3>,
    .most_slices = most_slices_of_experts};

const ir::OpSchema kGroupedLinearActivationGradientWithWeights{
    .name = "grouped_linear_activation_gradient_with_weights",
    .product = spec::find_product("grouped_linear_activation_gradient_with_weights"),
    .min_inputs = 6,
    .max_inputs = 7,
    .num_outputs = ir::kAnyNumber,
    .signature =
        "(dy [T,N], weight [E,N,F], offsets i32[E+1], gate [R,F] or i8_bf16_1xBLOCK, up?, row_map "
        "i32[R], weights f32[T,k]) -> dgate, dup?, dweights f32[T,k], activation?",
    .infer =
        [](ir::Types inputs, const spec::Attributes& attributes) {
          return infer_product_gradient<Form::kWeighted>(
              "grouped_linear_activation_gradient_with_weights", inputs, attributes);
        },
    .cost = product_gradient_cost,
    .may_alias = aliases<3>,
    .most_slices = most_slices_of_experts};

}  // namespace anabatic::ops
