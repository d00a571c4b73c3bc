// SPDX-License-Identifier: Apache-2.0
// Where the operands of products with an activation stand. Graph side and kernels read this alike.
#pragma once
#include "spec/activation.h"

namespace anabatic::spec {

// Of `linear_activation` and its other forms: x, a weight for each operand of the activation, then
// for experts offsets, row_map? and weights of rows?.
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

// Of `linear_activation_gradient` and its other forms: dy, weight, offsets of experts, the
// activation's operands, then row_map and weights of rows where there are any. An operand is a
// matrix, or int8 values and scales.
struct ActivationGradientInputs {
  int num_operands;
  bool is_grouped;
  bool is_quantized;  // the attribute `block`

  static constexpr int dy() { return 0; }
  static constexpr int weight() { return 1; }
  static constexpr int offsets() { return 2; }
  int inputs_an_operand() const { return is_quantized ? 2 : 1; }
  int operand(int i) const { return (is_grouped ? 3 : 2) + i * inputs_an_operand(); }
  int scales(int i) const { return operand(i) + 1; }
  int row_map() const { return operand(num_operands); }
  int row_weights() const { return row_map() + 1; }
};
inline ActivationGradientInputs activation_gradient_inputs(const Attributes& attributes,
                                                           bool is_grouped) {
  return {.num_operands = num_operands(activation_of(attributes)),
          .is_grouped = is_grouped,
          .is_quantized = attributes.contains("block")};
}

}  // namespace anabatic::spec
