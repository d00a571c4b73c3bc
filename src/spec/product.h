// SPDX-License-Identifier: Apache-2.0
// The forms that a product of rows with weights has as an op, in fields, and where its operands
// stand. Graph side and kernels read these alike; nobody takes an op's name apart.
#pragma once
#include <string_view>

#include "spec/activation.h"

namespace anabatic::spec {

enum class ProductRole : std::uint8_t { kForward, kInputGradient, kWeightGradient };

// What a product with an activation leaves of the activation's operands in addition to its result.
enum class KeptProducts : std::uint8_t { kNone, kWhole, kInt8 };

struct ProductForm {
  std::string_view op;
  ProductRole role;
  bool is_grouped = false;      // rows of experts, each with the matrix of its own
  bool has_several = false;     // weights: several products of one x, or into one gradient
  bool has_activation = false;  // after the product, or its gradient
  KeptProducts keeps = KeptProducts::kNone;
  bool has_row_weights = false;  // input gradient with activation: rows times router weights
  bool sums_squares = false;     // weight gradient: its sum of squares too

  // One weight and nothing after the product.
  bool is_plain() const { return !has_several && !has_activation && !sums_squares; }
  // Equal but for the op that it is.
  bool is_like(const ProductForm& other) const;
};

// Attribute of an input gradient in slices: the block format of the panels that it makes of f32
// rows, for an int8 product. Without it the weight is in the forward's panels, of its own dtype.
inline constexpr std::string_view kPackedFormat = "packed_format";

// Attribute `fallback` of int8 products: when a block of x has second int8 values. From kNoFallback
// on none has.
inline constexpr std::int64_t kDefaultFallback = 64, kNoFallback = 128;

// Null for an op that is no product.
const ProductForm* find_product(std::string_view op);
// The row with these fields, whatever its op. An internal error where there is no such form.
const ProductForm& product_like(const ProductForm& form);

// Inputs of forward products with an activation: x, a weight for each operand of the activation,
// then for experts offsets, row_map? and weights of rows?.
struct ActivationInputs {
  int num_weights;

  static constexpr int x() { return 0; }
  static constexpr int weight(int operand) { return 1 + operand; }
  int offsets() const { return 1 + num_weights; }
  int row_map() const { return 2 + num_weights; }
  int row_weights() const { return 3 + num_weights; }
};
inline ActivationInputs activation_inputs(const Attributes& attributes) {
  return {num_operands(activation_of(attributes))};
}

// Inputs of input gradients with an activation's gradient: dy, weight, offsets of experts, the
// activation's operands, then row_map and weights of rows where there are any. An operand is a
// matrix, whole or quantised.
struct ActivationGradientInputs {
  int num_operands;
  bool is_grouped;

  static constexpr int dy() { return 0; }
  static constexpr int weight() { return 1; }
  static constexpr int offsets() { return 2; }
  int operand(int i) const { return (is_grouped ? 3 : 2) + i; }
  int row_map() const { return operand(num_operands); }
  int row_weights() const { return row_map() + 1; }
};
inline ActivationGradientInputs activation_gradient_inputs(const Attributes& attributes,
                                                           bool is_grouped) {
  return {.num_operands = num_operands(activation_of(attributes)), .is_grouped = is_grouped};
}

}  // namespace anabatic::spec
