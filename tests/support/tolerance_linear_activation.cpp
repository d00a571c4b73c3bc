// SPDX-License-Identifier: Apache-2.0
// Bounds of products with an activation, or its gradient, after them. What the products leave is
// rounded to storage and then goes through the activation or into int8 values.
#include <algorithm>
#include <cmath>

#include "spec/product_bias.h"
#include "support/tolerance.h"

namespace anabatic::testing {
namespace {

// Columns of a partial sum of a weight's gradient, which double adds up.
constexpr double kSegment = 128;

double g(double num_operations) { return 2 * gamma(num_operations, DType::kFloat32); }

std::size_t size(const Values& values, std::int64_t axis) {
  return static_cast<std::size_t>(values.type.dim(axis));
}

struct Product {
  double value = 0, error = 0;  // of what is stored
};

// Row `row` of x times a column of a matrix that begins at `base`, `step` elements from one term to
// the next, plus `bias`.
Product product_of(const Values& x, std::size_t row, const Values& weight, std::size_t base,
                   std::size_t step, double bias = 0) {
  const std::size_t depth = size(x, 1);
  Product product{.value = bias};
  double magnitude = std::abs(bias);
  for (std::size_t k = 0; k < depth; ++k) {
    const double term = x.data[row * depth + k] * weight.data[base + k * step];
    product.value += term;
    magnitude += std::abs(term);
  }
  product.error =
      gamma(blocked_roundings(static_cast<double>(depth)) + 2, DType::kFloat32) * magnitude;
  product.error += 2 * unit_roundoff(x.type.dtype) * (std::abs(product.value) + product.error);
  return product;
}

// The matrix that each row is multiplied by.
std::vector<std::size_t> matrices(const Values* offsets, std::size_t num_rows) {
  std::vector<std::size_t> of_row(num_rows, 0);
  if (offsets == nullptr) return of_row;
  for (std::size_t e = 0; e + 1 < offsets->data.size(); ++e)
    for (auto t = static_cast<std::size_t>(offsets->data[e]);
         t < static_cast<std::size_t>(offsets->data[e + 1]); ++t)
      of_row[t] = e;
  return of_row;
}

// An activation at operands that are off by errors: what each result moves by.
class Moved {
 public:
  Moved(const spec::Activation& activation, const Product& gate, const Product& up)
      : at_(evaluate(activation, gate.value, up.value)),
        gate_(gate),
        up_(up),
        curvature_(row_of(activation).most_curvature),
        slope_(at_.factor != 0 ? std::abs(at_.by_gate / at_.factor) : slope_alone(activation)),
        factor_(std::abs(at_.factor)) {}

  double value_error() const {
    return moved_function() * (factor_ + up_.error) + std::abs(at_.by_up) * up_.error +
           g(at_.roundings) * std::abs(at_.value);
  }
  // The error of dh, off by its own, times the derivative by gate, and by up.
  double by_gate_error(const Product& dh) const {
    const double d = std::abs(dh.value) + dh.error;
    const double slope_moves = curvature_ * gate_.error;
    return std::abs(at_.by_gate) * dh.error +
           d * (g(at_.roundings) * at_.by_gate_terms + slope_moves * (factor_ + up_.error) +
                slope_ * up_.error);
  }
  double by_up_error(const Product& dh) const {
    const double d = std::abs(dh.value) + dh.error;
    return std::abs(at_.by_up) * (dh.error + g(at_.roundings) * d) + d * moved_function();
  }
  const spec::ActivationPoint& at() const { return at_; }

 private:
  double slope_alone(const spec::Activation& activation) const {
    return std::abs(evaluate(activation, gate_.value, 1).by_gate);
  }
  // By how much the function of gate moves.
  double moved_function() const { return (slope_ + curvature_ * gate_.error) * gate_.error; }

  spec::ActivationPoint at_;
  const Product &gate_, &up_;
  double curvature_, slope_, factor_;
};

// The value of up where there is none.
const Product kNoUp{.value = 1, .error = 0};

// Errors of the elements and scales of products in int8, `block` to a scale. A scale is largest /
// 127, rounded up to bf16: at most one unit more where the largest is off by an error. An int8
// value moves as its product and its scale do, and by one near a half, which may round either way.
void add_int8_errors(const std::vector<Product>& products, std::size_t width, std::size_t block,
                     Bound& bound) {
  std::vector<double> scales;
  for (std::size_t begin = 0; begin < products.size(); begin += width)
    for (std::size_t first = 0; first < width; first += block) {
      const std::size_t end = std::min(first + block, width);
      double largest = 0, error = 0;
      for (std::size_t n = first; n < end; ++n) {
        largest = std::max(largest, std::abs(products[begin + n].value));
        error = std::max(error, products[begin + n].error);
      }
      const double unit = 2 * unit_roundoff(DType::kBFloat16);
      scales.push_back((error + unit * (largest + error)) / 127);
      for (std::size_t n = first; n < end; ++n)
        bound.errors.push_back(
            largest > 2 * error ? 1 + 127 * (unit + 2 * error / (largest - error)) + 1 : 254);
    }
  bound.errors.insert(bound.errors.end(), scales.begin(), scales.end());
}

std::vector<Bound> forward_bounds(const OpCall& call) {
  const spec::Activation activation = spec::activation_of(call.attributes);
  const spec::ActivationInputs at{num_operands(activation)};
  const auto input = [&](int i) -> const Values& {
    return call.inputs[static_cast<std::size_t>(i)];
  };
  const auto biases = spec::biases_of(call.inputs, call.attributes);
  const std::size_t num_others = call.inputs.size() - biases.size();
  const auto has = [&](int i) { return num_others > static_cast<std::size_t>(i); };
  const Values& x = input(at.x());
  const bool grouped = input(at.weight(0)).type.ndim() == 3;
  const std::size_t num_rows = size({.type = call.outputs[0]}, 0), depth = size(x, 1),
                    width = size({.type = call.outputs[0]}, 1);
  const auto matrix = matrices(grouped ? &input(at.offsets()) : nullptr, num_rows);
  const auto top_k = static_cast<std::size_t>(spec::get_int_or(call.attributes, "top_k", 0));
  std::vector<Bound> bounds(call.outputs.size());
  std::vector<std::vector<Product>> products(static_cast<std::size_t>(at.num_weights));
  for (std::size_t t = 0; t < num_rows; ++t) {
    const std::size_t slot =
        has(at.row_map()) ? static_cast<std::size_t>(input(at.row_map()).data[t]) : t;
    const double factor = has(at.row_weights()) ? std::abs(input(at.row_weights()).data[slot]) : 1;
    for (std::size_t n = 0; n < width; ++n) {
      const std::size_t row = top_k > 0 ? slot / top_k : t, place = matrix[t] * width + n;
      for (std::size_t i = 0; i < products.size(); ++i)
        products[i].push_back(product_of(x, row, input(at.weight(static_cast<int>(i))),
                                         place * depth, 1,
                                         biases.empty() ? 0.0 : biases[i].data[place]));
      const Moved moved(activation, products[0].back(),
                        products.size() > 1 ? products[1].back() : kNoUp);
      bounds[0].errors.push_back(factor *
                                 (moved.value_error() + g(1) * std::abs(moved.at().value)));
    }
  }
  for (std::size_t i = 0; i < products.size(); ++i) {
    if (call.outputs.back().is_quantized()) {
      const auto block = static_cast<std::size_t>(call.outputs.back().blocks->columns);
      add_int8_errors(products[i], width, block, bounds[1 + i]);
    } else if (bounds.size() > 1) {
      for (const Product& one : products[i]) bounds[1 + i].errors.push_back(one.error);
    }
  }
  return bounds;
}

// Elements of gate or up; of a quantised one times their scales, rounded to `dtype`.
std::vector<Product> elements_of(const Values& operand, DType dtype) {
  const auto num_elements = static_cast<std::size_t>(operand.type.num_elements());
  std::vector<Product> elements;
  for (std::size_t i = 0; i < num_elements; ++i) elements.push_back({operand.data[i]});
  if (!operand.type.is_quantized()) return elements;
  const std::size_t width = size(operand, 1),
                    num_scales = static_cast<std::size_t>(scale_columns(operand.type)),
                    block = static_cast<std::size_t>(operand.type.blocks->columns);
  for (std::size_t i = 0; i < num_elements; ++i) {
    elements[i].value *= operand.data[num_elements + i / width * num_scales + i % width / block];
    elements[i].error = 2 * unit_roundoff(dtype) * std::abs(elements[i].value);
  }
  return elements;
}

std::vector<Bound> gradient_bounds(const OpCall& call) {
  const spec::Activation activation = spec::activation_of(call.attributes);
  const Values &dy = call.inputs[0], &weight = call.inputs[1];
  const spec::ActivationGradientInputs at =
      spec::activation_gradient_inputs(call.attributes, weight.type.ndim() == 3);
  const auto end = static_cast<std::size_t>(at.row_map());
  const bool weighted = call.inputs.size() > end;
  std::vector<std::vector<Product>> operands;
  for (int i = 0; i < at.num_operands; ++i)
    operands.push_back(
        elements_of(call.inputs[static_cast<std::size_t>(at.operand(i))], dy.type.dtype));
  const Values& gates = call.inputs[static_cast<std::size_t>(at.operand(0))];
  const std::size_t num_rows = size(gates, 0), width = size(gates, 1), depth = size(dy, 1),
                    of_weights = operands.size();
  const auto matrix = matrices(at.is_grouped ? &call.inputs[2] : nullptr, num_rows);
  std::vector<Bound> bounds(call.outputs.size());
  if (weighted) bounds[of_weights].errors.assign(call.inputs[end + 1].data.size(), 0.0);
  for (std::size_t t = 0; t < num_rows; ++t) {
    const std::size_t slot = weighted ? static_cast<std::size_t>(call.inputs[end].data[t]) : t;
    const std::size_t row = weighted ? slot / size(call.inputs[end + 1], 1) : t;
    const double factor = weighted ? std::abs(call.inputs[end + 1].data[slot]) : 1;
    for (std::size_t f = 0; f < width; ++f) {
      const Product dh = product_of(dy, row, weight, matrix[t] * depth * width + f, width);
      const Moved moved(activation, operands[0][t * width + f],
                        operands.size() > 1 ? operands[1][t * width + f] : kNoUp);
      bounds[0].errors.push_back(factor * moved.by_gate_error(dh));
      if (operands.size() > 1) bounds[1].errors.push_back(factor * moved.by_up_error(dh));
      const double value = std::abs(moved.at().value), d = std::abs(dh.value) + dh.error;
      if (weighted)
        bounds[of_weights].errors[slot] +=
            value * (dh.error + g(std::min(static_cast<double>(width), kSegment)) * d) +
            d * moved.value_error();
      if (call.attributes.contains("with_activation"))
        bounds.back().errors.push_back(factor * (moved.value_error() + g(1) * value));
    }
  }
  return bounds;
}

}  // namespace

std::vector<Bound> linear_activation_bounds(const OpCall& call) {
  return call.op.find("_gradient") != std::string_view::npos ? gradient_bounds(call)
                                                             : forward_bounds(call);
}

}  // namespace anabatic::testing
