// SPDX-License-Identifier: Apache-2.0
// What op `quantize` does to a value, and to the gradients that read it. docs/internals/memory.md
// derives the bounds.
#include <algorithm>
#include <cmath>

#include "base/error.h"
#include "support/tolerance.h"

namespace anabatic::testing {
namespace {

using Errors = std::vector<std::vector<double>>;

// Sums of doubles on both sides.
constexpr double kSlack = 1.0 + 1e-9;
// Largest |silu'| and |silu''|.
constexpr double kSlope = 1.1, kCurvature = 0.5;

std::size_t width_of(const Values& values) { return static_cast<std::size_t>(values.type.dim(1)); }

// |Δdw[n,k]| <= Σ_t |dy[t,n]|·e[t,k].
Errors linear_weight_gradient(const OpCall& call, const Errors& errors) {
  const std::vector<double>& dy = call.inputs[1].data;
  const std::size_t depth = width_of(call.inputs[0]), width = width_of(call.inputs[1]);
  std::vector<double> result(width * depth, 0);
  for (std::size_t t = 0; t < dy.size() / width; ++t)
    for (std::size_t n = 0; n < width; ++n)
      for (std::size_t k = 0; k < depth; ++k)
        result[n * depth + k] += kSlack * std::abs(dy[t * width + n]) * errors[0][t * depth + k];
  return {result};
}

// dup = dy·silu(g); dgate = dy·u·silu'(g).
Errors activation_gradient(const OpCall& call, const Errors& errors) {
  Errors result(2);
  for (std::size_t i = 0; i < errors[0].size(); ++i) {
    const double up = std::abs(call.inputs[1].data[i]), dy = std::abs(call.inputs[2].data[i]);
    result[0].push_back(kSlack * dy * (kSlope * errors[1][i] + kCurvature * up * errors[0][i]));
    result[1].push_back(kSlack * dy * kSlope * errors[0][i]);
  }
  return result;
}

// η of row t: by how much the direction x / |x| turns.
double turn(const OpCall& call, const Errors& errors, std::size_t t, double& length) {
  const std::size_t width = width_of(call.inputs[0]);
  double squares = static_cast<double>(width) * spec::get_double(call.attributes, "epsilon"),
         error = 0;
  for (std::size_t i = t * width; i < (t + 1) * width; ++i) {
    squares += call.inputs[0].data[i] * call.inputs[0].data[i];
    error += errors[0][i] * errors[0][i];
  }
  length = std::sqrt(squares);
  error = std::sqrt(error);
  ANABATIC_CHECK(error < length / 2, "[tolerance] a row that is all error");
  return error / (length - error);
}

// |Δdw[j]| <= Σ_t |dy[t,j]|·√W·η_t.
Errors rms_norm_weight_gradient(const OpCall& call, const Errors& errors) {
  const std::size_t width = width_of(call.inputs[0]);
  const std::vector<double>& dy = call.inputs[1].data;
  std::vector<double> result(width, 0);
  for (std::size_t t = 0; t < dy.size() / width; ++t) {
    double length = 0;
    const double eta = turn(call, errors, t, length);
    for (std::size_t j = 0; j < width; ++j)
      result[j] +=
          kSlack * std::abs(dy[t * width + j]) * std::sqrt(static_cast<double>(width)) * eta;
  }
  return {result};
}

// The length of a row's Δdx is at most 3·η·|w·dy|·√W / length of x.
Errors rms_norm_input_gradient(const OpCall& call, const Errors& errors) {
  const std::size_t width = width_of(call.inputs[0]);
  const std::vector<double>&w = call.inputs[1].data, &dy = call.inputs[2].data;
  std::vector<double> result;
  for (std::size_t t = 0; t < dy.size() / width; ++t) {
    double length = 0, squares = 0;
    const double eta = turn(call, errors, t, length);
    for (std::size_t j = 0; j < width; ++j)
      squares += w[j] * dy[t * width + j] * w[j] * dy[t * width + j];
    result.insert(result.end(), width,
                  kSlack * 3 * eta * std::sqrt(squares * static_cast<double>(width)) / length);
  }
  return {result};
}

constexpr std::int64_t kInt8BlockDepth = 128;

// What a block of a line brings to the bound.
struct BlockSizes {
  double error = 0;      // of an element
  double magnitude = 0;  // the largest element
};

std::vector<BlockSizes> block_sizes(const Int8Operand& x) {
  const std::int64_t blocks = (x.depth + kInt8BlockDepth - 1) / kInt8BlockDepth;
  std::vector<BlockSizes> sizes(static_cast<std::size_t>(x.lines * blocks));
  for (std::int64_t line = 0; line < x.lines; ++line)
    for (std::int64_t b = 0; b < blocks; ++b) {
      BlockSizes& block = sizes[static_cast<std::size_t>(line * blocks + b)];
      const std::int64_t first = line / x.tile_lines * x.tile_lines;
      for (std::int64_t i = first; i < std::min(x.lines, first + x.tile_lines); ++i)
        for (std::int64_t k = b * kInt8BlockDepth; k < std::min(x.depth, (b + 1) * kInt8BlockDepth);
             ++k)
          block.magnitude =
              std::max(block.magnitude,
                       std::abs(double{x.values[static_cast<std::size_t>(i * x.depth + k)]}));
      const double scale = to_float(to_bfloat16_up(static_cast<float>(block.magnitude / 127)));
      const bool has_second =
          !x.falls_back.empty() && x.falls_back[static_cast<std::size_t>(line * blocks + b)];
      block.error =
          scale * ((has_second ? 1.0 / 508 : 0.5) + 0x1p-15) + 0x1p-100;  // below which all is zero
    }
  return sizes;
}

}  // namespace

std::vector<double> int8_product_tolerances(const Int8Operand& a, const Int8Operand& b, DType dtype,
                                            double before) {
  const std::vector<BlockSizes> left = block_sizes(a), right = block_sizes(b);
  const std::int64_t blocks = (a.depth + kInt8BlockDepth - 1) / kInt8BlockDepth;
  std::vector<double> result;
  for (std::int64_t i = 0; i < a.lines; ++i)
    for (std::int64_t j = 0; j < b.lines; ++j) {
      double error = 0, magnitude = std::abs(before), sum = before;
      for (std::int64_t k = 0; k < a.depth; ++k) {
        const BlockSizes &of_a = left[static_cast<std::size_t>(i * blocks + k / kInt8BlockDepth)],
                         &of_b = right[static_cast<std::size_t>(j * blocks + k / kInt8BlockDepth)];
        const double x = a.values[static_cast<std::size_t>(i * a.depth + k)],
                     y = b.values[static_cast<std::size_t>(j * b.depth + k)];
        error += of_a.error * std::abs(y) + of_b.error * std::abs(x) + of_a.error * of_b.error;
        magnitude += (std::abs(x) + of_a.error) * (std::abs(y) + of_b.error);
        sum += x * y;
      }
      error += gamma(2.0 * static_cast<double>(blocks), DType::kFloat32) * magnitude;
      if (dtype != DType::kFloat32) error += unit_roundoff(dtype) * (std::abs(sum) + error);
      result.push_back(kSlack * error);
    }
  return result;
}

double quantization_tolerance(double largest, DType dtype) {
  const double f32 = largest * (1.0 / 252 + 8 * unit_roundoff(DType::kFloat32)) + 0x1p-100;
  return dtype == DType::kFloat32 ? f32 : f32 + unit_roundoff(dtype) * (largest + f32);
}

std::vector<std::vector<double>> gradient_tolerances(const OpCall& call, const Errors& errors) {
  if (call.op == "linear_weight_gradient") return linear_weight_gradient(call, errors);
  if (call.op == "activation_gradient") return activation_gradient(call, errors);
  if (call.op == "rms_norm_weight_gradient") return rms_norm_weight_gradient(call, errors);
  ANABATIC_CHECK(call.op == "rms_norm_input_gradient", "[tolerance] no bound for {}", call.op);
  return rms_norm_input_gradient(call, errors);
}

}  // namespace anabatic::testing
