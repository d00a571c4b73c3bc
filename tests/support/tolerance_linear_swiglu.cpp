// SPDX-License-Identifier: Apache-2.0
// Bounds of products with swiglu, or its gradient, after them. The products' results are rounded to
// storage, and are then inputs of silu, whose slope is at most 1.1, or are quantised.
#include <algorithm>
#include <cmath>

#include "support/tolerance.h"

namespace anabatic::testing {
namespace {

// kSegment: columns of a partial sum of a weight's gradient, which double adds up.
constexpr double kFunction = 8.0, kSlope = 1.1, kSegment = 128;

double g(double num_operations) { return 2 * gamma(num_operations, DType::kFloat32); }

std::size_t size(const Values& values, std::int64_t axis) {
  return static_cast<std::size_t>(values.type.dim(axis));
}

double silu(double x) { return x / (1 + std::exp(-x)); }

struct Product {
  double value = 0, error = 0;  // of what is stored
};

// Row `row` of x times a column of a matrix that begins at `base`, `step` elements from one term to
// the next.
Product product_of(const Values& x, std::size_t row, const Values& weight, std::size_t base,
                   std::size_t step) {
  const std::size_t depth = size(x, 1);
  Product product;
  double magnitude = 0;
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

// The error of factor · silu(gate) · up.
double activation_error(const Product& gate, const Product& up, double factor) {
  const double h = std::abs(silu(gate.value) * up.value);
  return factor * (kSlope * gate.error * (std::abs(up.value) + up.error) +
                   std::abs(silu(gate.value)) * up.error + g(kFunction + std::abs(gate.value)) * h);
}

// Errors of the int8 values and scales of products, `block` to a scale. A scale is largest / 127,
// rounded up to bf16: one unit more at most if the largest has an error. An int8 value moves by
// what its product and its scale do, and by one where either side of a half is rounded to.
void add_code_errors(const std::vector<Product>& products, std::size_t width, std::size_t block,
                     Bound& codes, Bound& scales) {
  for (std::size_t begin = 0; begin < products.size(); begin += width)
    for (std::size_t first = 0; first < width; first += block) {
      const std::size_t end = std::min(first + block, width);
      double largest = 0, error = 0;
      for (std::size_t n = first; n < end; ++n) {
        largest = std::max(largest, std::abs(products[begin + n].value));
        error = std::max(error, products[begin + n].error);
      }
      const double unit = 2 * unit_roundoff(DType::kBFloat16);
      scales.errors.push_back((error + unit * (largest + error)) / 127);
      for (std::size_t n = first; n < end; ++n)
        codes.errors.push_back(
            largest > 2 * error ? 1 + 127 * (unit + 2 * error / (largest - error)) + 1 : 254);
    }
}

std::vector<Bound> forward_bounds(const OpCall& call) {
  const Values &x = call.inputs[0], &gate_weight = call.inputs[1], &up_weight = call.inputs[2];
  const bool grouped = call.inputs.size() > 3;
  const std::size_t num_rows = size({.type = call.outputs[0]}, 0), depth = size(x, 1),
                    width = size({.type = call.outputs[0]}, 1);
  const auto matrix = matrices(grouped ? &call.inputs[3] : nullptr, num_rows);
  const auto top_k = static_cast<std::size_t>(spec::get_int_or(call.attributes, "top_k", 0));
  std::vector<Bound> bounds(call.outputs.size());
  std::vector<Product> gates, ups;
  for (std::size_t t = 0; t < num_rows; ++t) {
    const std::size_t slot =
        call.inputs.size() > 4 ? static_cast<std::size_t>(call.inputs[4].data[t]) : t;
    const double factor = call.inputs.size() > 5 ? std::abs(call.inputs[5].data[slot]) : 1;
    for (std::size_t n = 0; n < width; ++n) {
      const std::size_t row = top_k > 0 ? slot / top_k : t, base = (matrix[t] * width + n) * depth;
      const Product gate = product_of(x, row, gate_weight, base, 1),
                    up = product_of(x, row, up_weight, base, 1);
      bounds[0].errors.push_back(activation_error(gate, up, factor));
      gates.push_back(gate);
      ups.push_back(up);
    }
  }
  if (bounds.size() == 3) {
    for (const Product& gate : gates) bounds[1].errors.push_back(gate.error);
    for (const Product& up : ups) bounds[2].errors.push_back(up.error);
  } else if (bounds.size() == 5) {
    const auto block = static_cast<std::size_t>(spec::get_int(call.attributes, "block"));
    add_code_errors(gates, width, block, bounds[1], bounds[2]);
    add_code_errors(ups, width, block, bounds[3], bounds[4]);
  }
  return bounds;
}

// Elements of gate or up: whole, or int8 values at `input` and their scales after them, multiplied
// and rounded to `dtype`.
std::vector<Product> elements_of(const OpCall& call, std::size_t input, DType dtype) {
  const Values& values = call.inputs[input];
  std::vector<Product> elements;
  for (const double value : values.data) elements.push_back({value});
  const auto block = static_cast<std::size_t>(spec::get_int_or(call.attributes, "block", 0));
  if (block == 0) return elements;
  const Values& scales = call.inputs[input + 1];
  const std::size_t width = size(values, 1), num_scales = size(scales, 1);
  for (std::size_t i = 0; i < elements.size(); ++i) {
    elements[i].value *= scales.data[i / width * num_scales + i % width / block];
    elements[i].error = 2 * unit_roundoff(dtype) * std::abs(elements[i].value);
  }
  return elements;
}

std::vector<Bound> gradient_bounds(const OpCall& call) {
  constexpr double kCurvature = 0.5;  // of silu, at most
  const Values &dy = call.inputs[0], &weight = call.inputs[1];
  const bool grouped = weight.type.ndim() == 3;
  const std::size_t first = grouped ? 3 : 2,
                    second = first + (call.attributes.contains("block") ? 2 : 1),
                    end = 2 * second - first;
  const bool weighted = call.inputs.size() > end;
  const std::vector<Product> gates = elements_of(call, first, dy.type.dtype),
                             ups = elements_of(call, second, dy.type.dtype);
  const std::size_t num_rows = size(call.inputs[first], 0), width = size(call.inputs[first], 1),
                    depth = size(dy, 1);
  const auto matrix = matrices(grouped ? &call.inputs[2] : nullptr, num_rows);
  std::vector<Bound> bounds(call.outputs.size());
  if (weighted) bounds[2].errors.assign(call.inputs[end + 1].data.size(), 0.0);
  for (std::size_t t = 0; t < num_rows; ++t) {
    const std::size_t slot = weighted ? static_cast<std::size_t>(call.inputs[end].data[t]) : t;
    const std::size_t row = weighted ? slot / size(call.inputs[end + 1], 1) : t;
    const double factor = weighted ? std::abs(call.inputs[end + 1].data[slot]) : 1;
    for (std::size_t f = 0; f < width; ++f) {
      const Product dh = product_of(dy, row, weight, matrix[t] * depth * width + f, width);
      const Product &of_gate = gates[t * width + f], &of_up = ups[t * width + f];
      const double gate = of_gate.value, up = of_up.value, of_silu = kSlope * of_gate.error;
      const double s = 1 / (1 + std::exp(-gate)), d = std::abs(dh.value) + dh.error,
                   c = g(kFunction + std::abs(gate)), most_up = std::abs(up) + of_up.error;
      bounds[0].errors.push_back(
          factor * (std::abs(up) * (kSlope * dh.error + c * d * s * (1 + std::abs(gate))) +
                    d * (kSlope * of_up.error + kCurvature * of_gate.error * most_up)));
      bounds[1].errors.push_back(factor * (std::abs(gate) * s * (dh.error + c * d) + d * of_silu));
      if (weighted)
        bounds[2].errors[slot] +=
            std::abs(gate * up) * s *
                (dh.error +
                 (c + g(std::min(static_cast<double>(width), kSegment) + kFunction)) * d) +
            d * (of_silu * most_up + std::abs(gate) * s * of_up.error);
      if (call.attributes.contains("activation"))
        bounds.back().errors.push_back(activation_error(of_gate, of_up, factor));
    }
  }
  return bounds;
}

}  // namespace

std::vector<Bound> linear_swiglu_bounds(const OpCall& call) {
  return call.op.find("_gradient") != std::string_view::npos ? gradient_bounds(call)
                                                             : forward_bounds(call);
}

}  // namespace anabatic::testing
