// SPDX-License-Identifier: Apache-2.0
#include "support/tolerance.h"

#include <algorithm>
#include <cmath>

#include "base/error.h"

namespace anabatic::testing {
namespace {

// Covers the rounding of constants, and what a value that is added to passes through.
constexpr double kLinearConstant = 2.0;

// Rows that the sums over all rows take at a time.
constexpr double kRowsOfPartial = 64;

double dim(const Values& values, std::int64_t axis) {
  return static_cast<double>(values.type.dim(axis));
}

// Depths of the products behind one output of an op that multiplies matrices; empty for others.
std::vector<double> depths(const OpCall& call) {
  const auto& in = call.inputs;
  const std::string_view op = call.op;
  if (op.find("linear") == op.npos || op.find("activation") != op.npos) return {};
  if (op.find("weight_gradient") != op.npos) {
    if (op.starts_with("grouped")) return {std::max(dim(in[0], 0), dim(in[1], 0))};  // or gathered
    return {dim(in[0], 0)};
  }
  if (op.ends_with("many_input_gradient")) {
    std::vector<double> all;  // one sum over all products
    for (std::size_t i = 0; i + 1 < in.size(); i += 2) all.push_back(dim(in[i], 1));
    return all;
  }
  return {dim(in[0], 1)};
}

// Additions of blocks behind one output.
double num_blocks(std::span<const double> depths) {
  double blocks = 0;
  for (const double depth : depths) blocks += std::ceil(depth / kLeastBlockTerms);
  return blocks;
}

// Length of the longest chain of operations behind one output, for ops that are sums of products of
// their inputs; -1 for others. A row without multiply-add rounds a product apart; a bias adds one.
double num_operations(const OpCall& call, std::size_t output) {
  const auto& in = call.inputs;
  const std::string_view op = call.op;
  if (const std::vector<double> of_products = depths(call); !of_products.empty()) {
    double terms = 0;
    for (const double depth : of_products) terms += depth;
    return std::min(terms, kMostBlockTerms) + num_blocks(of_products) + 2;
  }
  if (op == "add" || op == "scale" || op == "scale_by" || op == "rope") return 3;
  if (op == "sum_leaves") return static_cast<double>(in.size());
  if (op == "sum_rows") return std::min(dim(in[0], 0), kRowsOfPartial) + 2;  // partials in double
  // One rounding to the sum, and one for each product; the last of them sums in double.
  if (op == "expert_bias") return dim(in[2], 1) + 1;
  if (op == "expert_bias_router_gradient") return row_roundings(dim(in[0], 1)) + 1;
  if (op == "expert_bias_weight_gradient") return 2;
  if (op == "embedding_weight_gradient") return blocked_roundings(dim(in[1], 0), kMostBlockTerms);
  if (op == "join_heads_gradient")
    return output == 0 ? static_cast<double>(spec::get_int(call.attributes, "num_heads")) : 0;
  if (op == "permute_gradient") return static_cast<double>(spec::get_int(call.attributes, "top_k"));
  if (op == "unpermute") return dim(in[1], 1);
  if (op == "unpermute_gradient") return output == 0 ? 1 : row_roundings(dim(in[0], 1)) + 1;
  if (op.starts_with("sum_squares")) {
    std::size_t most = 0;
    for (const Values& gradient : in) most = std::max(most, gradient.data.size());
    return static_cast<double>(most);
  }
  return -1;
}

// Σ|a||b|: the op itself on absolute values.
std::vector<Values> absolute_products(const OpCall& call) {
  OpCall absolute = call;
  for (Values& input : absolute.inputs)
    if (is_float(input.type.dtype))
      for (double& value : input.data) value = std::abs(value);
  if (call.op == "scale") {
    double factor = spec::get_double(call.attributes, "factor");
    absolute.attributes["factor"] = std::abs(factor);
  }
  return run_in_double(absolute);
}

// rope subtracts, so absolute inputs cancel: |x1·c| + |x2·s| <= (|x1| + |x2|)·max|table|.
std::vector<double> rope_magnitudes(const OpCall& call) {
  const auto head = static_cast<std::size_t>(spec::get_int(call.attributes, "head_dim"));
  const auto half = static_cast<std::size_t>(call.inputs[1].type.dim(1) / 2);
  double largest = 1;
  for (const double value : call.inputs[1].data) largest = std::max(largest, std::abs(value));
  const std::vector<double>& x = call.inputs[0].data;
  std::vector<double> magnitudes(x.size());
  for (std::size_t i = 0; i < x.size(); ++i) {
    const std::size_t d = i % head;
    const std::size_t partner = d < half ? i + half : d < 2 * half ? i - half : i;
    magnitudes[i] = (std::abs(x[i]) + std::abs(x[partner])) * largest;
  }
  return magnitudes;
}

bool copies_only(std::string_view op) {
  return op == "all_gather" || op == "all_reduce" || op == "cache_write" || op == "cast" ||
         op == "clamp" || op == "clamp_gradient" || op == "dequantize" || op == "dispatch_map" ||
         op == "dropout" || op == "embedding" || op == "exchange_rows" || op == "fake_quantize" ||
         op == "fake_quantize_tokens" || op == "fill" || op == "join_heads" || op == "pack" ||
         op == "pack_sparse" || op == "permute" || op == "quantize" || op == "reduce_scatter" ||
         op == "reload" || op == "reshape" || op == "route_sort" || op == "sparse_index";
}

std::vector<Bound> linear_bounds(const OpCall& call) {
  const std::vector<Values> products = absolute_products(call);
  std::vector<Bound> bounds;
  for (std::size_t o = 0; o < products.size(); ++o) {
    const bool is_double = call.op.starts_with("sum_squares");
    const double g = gamma(num_operations(call, o), is_double ? DType::kFloat64 : DType::kFloat32);
    const std::vector<double> magnitudes =
        call.op == "rope" ? rope_magnitudes(call) : products[o].data;
    Bound bound;
    for (const double magnitude : magnitudes) bound.errors.push_back(g * magnitude);
    const std::vector<double> of_products = depths(call);
    bound.num_additions =
        std::max(1.0, of_products.empty() ? num_operations(call, o) : num_blocks(of_products));
    bounds.push_back(std::move(bound));
  }
  return bounds;
}

// |(w + e)² - w²| <= (2|w| + |e|)·|e|, and the rounding of a sum of doubles.
double squares_tolerance(const Values& want, std::span<const Values> before,
                         const std::vector<double>& errors) {
  double tolerance = 0, sum = 0;
  for (std::size_t i = 0; i < errors.size(); ++i) {
    const double value = std::abs(want.data[i] + (before.empty() ? 0.0 : before[0].data[i]));
    tolerance += (2 * value + errors[i]) * errors[i];
    sum += value * value;
  }
  return tolerance +
         kLinearConstant * gamma(static_cast<double>(errors.size()) + 1, DType::kFloat64) * sum;
}

}  // namespace

bool sums_its_squares(std::string_view op) {
  return op.ends_with("_squares") && op != "sum_squares";
}

double unit_roundoff(DType dtype) {
  switch (dtype) {
    case DType::kFloat64:
      return 0x1.0p-53;
    case DType::kFloat32:
      return 0x1.0p-24;
    case DType::kBFloat16:
      return 0x1.0p-8;
    case DType::kFloat16:
      return 0x1.0p-11;
    default:
      return 0;
  }
}

double gamma(double num_operations, DType accumulator) {
  const double ku = num_operations * unit_roundoff(accumulator);
  ANABATIC_CHECK(ku < 1, "[tolerance] {} operations are too many for a bound", num_operations);
  return ku / (1 - ku);
}

double blocked_roundings(double num_terms, double least_block) {
  return std::min(num_terms, kMostBlockTerms) + std::ceil(num_terms / least_block);
}

double row_roundings(double width) {
  constexpr double kMostOfLane = 256, kOfLanes = 8;
  return std::min(width, kMostOfLane + kOfLanes);
}

std::vector<std::vector<double>> output_tolerances(const OpCall& given,
                                                   std::span<const Values> wants,
                                                   std::span<const Values> before,
                                                   std::string_view row) {
  const OpCall call = with_plain_weights(given);
  std::vector<Bound> bounds;
  if (copies_only(call.op))
    for (const Values& want : wants)
      bounds.push_back({.errors = std::vector<double>(want.data.size(), 0.0)});
  else
    bounds =
        num_operations(call, 0) >= 0 ? linear_bounds(call) : nonlinear_bounds(call, wants, row);
  std::vector<std::vector<double>> tolerances;
  for (std::size_t o = 0; o < wants.size(); ++o) {
    std::vector<double> tolerance = bounds[o].errors;
    for (std::size_t i = 0; i < tolerance.size(); ++i) {
      const DType dtype = dtype_at(call.outputs[o], i);
      const double want = std::isfinite(wants[o].data[i]) ? wants[o].data[i] : 0.0;
      // A rounding to 16 bits goes by way of f32, hence the second unit.
      double roundoff = bounds[o].num_roundings * unit_roundoff(dtype);
      if (dtype == DType::kBFloat16 || dtype == DType::kFloat16)
        roundoff += unit_roundoff(DType::kFloat32);
      tolerance[i] += roundoff * (std::abs(want) + tolerance[i]);
      if (!before.empty())
        tolerance[i] += kLinearConstant *
                        (gamma(bounds[o].num_additions, DType::kFloat32) + unit_roundoff(dtype)) *
                        (std::abs(before[o].data[i]) + std::abs(want));
      if (is_float(dtype)) tolerance[i] += kSmallestNormal;
      if (dtype == DType::kFloat16) tolerance[i] += bounds[o].num_roundings * kHalfStep;
    }
    tolerances.push_back(std::move(tolerance));
  }
  if (sums_its_squares(call.op))
    tolerances[1] = {squares_tolerance(wants[0], before, tolerances[0])};
  return tolerances;
}

double sum_of_squares(const Values& values) {
  double sum = 0;
  for (const double value : values.data) sum += value * value;
  return sum;
}

std::vector<double> agreement_tolerances(const Values& want, DType dtype) {
  double largest = 0;
  for (const double value : want.data) largest = std::max(largest, std::abs(value));
  return std::vector<double>(want.data.size(), agreement_tolerance(largest, dtype));
}

double agreement_tolerance(double want, DType dtype) {
  return gamma(256, dtype) * (1 + std::abs(want));
}

double mean_of_roundings_tolerance(double step, double count) {
  return 6 * 0.5 * step / std::sqrt(count);
}

double event_count_tolerance(double count, double probability) {
  const double log = std::log(2e9), variance = count * probability * (1 - probability);
  return log / 3 + std::sqrt(log * log / 9 + 2 * log * variance);
}

double dynamic_map_tolerance(bool is_signed, double x, double scale) {
  const double share = std::abs(x) / scale;
  const int decade = std::clamp(7 + static_cast<int>(std::floor(std::log10(share))), 0, 6);
  const double count = is_signed ? 1 << decade : 2 << decade;
  const double top = std::pow(10.0, decade - 6);
  const double bound = share < 1e-7 ? 0.1 * top + 0.45 * top / count : 0.45 * top / count;
  return scale * (bound + gamma(4, DType::kFloat32) * share);
}

double noisy_moments_tolerance(double loss) { return 0.05 * loss; }

double loss_tolerance(double loss, DType dtype) {
  return dtype == DType::kFloat32 ? agreement_tolerance(loss, dtype)
                                  : noisy_moments_tolerance(loss);
}

double difference_step() { return std::cbrt(3 * unit_roundoff(DType::kFloat64)); }

double difference_tolerance(double magnitude) {
  // Two terms of size h²; 64 stands for the third derivative and the length of the sum.
  const double h = difference_step();
  return 64 * h * h * (1.0 + magnitude);
}

ParityBounds parity_bounds(std::int64_t num_layers, std::int64_t hidden_size, DType dtype) {
  constexpr double kTensorsPerLayer = 8, kConfidence = 4;
  const double walk = std::sqrt(kTensorsPerLayer * static_cast<double>(num_layers + 1));
  const double per_tensor = unit_roundoff(dtype) + std::sqrt(static_cast<double>(hidden_size)) *
                                                       unit_roundoff(DType::kFloat32);
  const double logits = kConfidence * walk * per_tensor;
  return {.logits = logits, .gradient = 3 * logits};
}

}  // namespace anabatic::testing
