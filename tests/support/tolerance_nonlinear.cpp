// SPDX-License-Identifier: Apache-2.0
// Bounds of ops with exponentials, logarithms, roots and quotients: first-order error analysis with
// the condition of each step, times a constant.
#include <algorithm>
#include <array>
#include <cmath>

#include "base/error.h"
#include "base/rounding.h"
#include "spec/activation.h"
#include "support/tolerance_softmax.h"
#include "tensor/dynamic_map.h"

namespace anabatic::testing {
namespace {

using Data = std::vector<double>;

std::size_t columns(const Values& values) { return static_cast<std::size_t>(values.type.dim(-1)); }

std::size_t rows(const Values& values) { return static_cast<std::size_t>(values.type.dim(0)); }

// Relative to the output alone: roots, quotients, products without cancellation.
Bound relative(const Values& want, double factor) {
  Bound bound;
  for (const double value : want.data)
    bound.errors.push_back(std::isfinite(value) ? factor * std::abs(value) : 0.0);
  return bound;
}

// A value keeps relative errors, as its product with a row's weight does. The terms of a derivative
// may cancel, so they are taken absolute. spec/activation.h has both of each activation.
std::vector<Bound> activation_bounds(const OpCall& call) {
  const spec::Activation activation = spec::activation_of(call.attributes);
  const auto count = static_cast<std::size_t>(num_operands(activation));
  const Data& gate = call.inputs[0].data;
  const bool backward = call.op == "activation_gradient", weighted = call.inputs.size() > count + 1;
  const auto width = static_cast<std::size_t>(columns(call.inputs[0]));
  std::vector<Bound> bounds(backward ? count : 1);
  for (std::size_t i = 0; i < gate.size(); ++i) {
    const spec::ActivationPoint at =
        evaluate(activation, gate[i], count > 1 ? call.inputs[1].data[i] : 1);
    const double c = g(at.roundings);
    if (!backward) {
      double factor = 1;
      if (weighted)
        factor = call.inputs[count + 1]
                     .data[static_cast<std::size_t>(call.inputs[count].data[i / width])];
      bounds[0].errors.push_back((c + (weighted ? g(1) : 0)) * std::abs(factor * at.value) +
                                 kUnderflow * std::abs(factor) *
                                     std::max(1.0, std::abs(at.factor)));
      continue;
    }
    const double dy = std::abs(call.inputs[count].data[i]);
    bounds[0].errors.push_back(c * dy * at.by_gate_terms + kUnderflow * dy * std::abs(at.factor));
    if (count > 1) bounds[1].errors.push_back(c * dy * std::abs(at.by_up) + kUnderflow * dy);
  }
  return bounds;
}

// Rotated are x, or the norm of x: off by γ_W and the roundings of the normalised value and of its
// product with the weight. |x1·c| + |x2·s| <= (|x1| + |x2|)·max|table|.
std::vector<Bound> rope_pair_bounds(const OpCall& call) {
  const auto head = static_cast<std::size_t>(spec::get_int(call.attributes, "head_dim"));
  const std::size_t half = columns(call.inputs[2]) / 2;
  double largest = 1;
  for (const double value : call.inputs[2].data) largest = std::max(largest, std::abs(value));
  std::vector<Bound> bounds(2);
  for (std::size_t o = 0; o < 2; ++o) {
    Values x = call.inputs[o];
    double error = 0;
    if (call.inputs.size() > 3) {
      const double u = unit_roundoff(x.type.dtype);
      error = (1 + g(row_roundings(static_cast<double>(head)) + kFunction)) * (1 + u) * (1 + u) - 1;
      const OpCall norm{"rms_norm",
                        {{"epsilon", spec::get_double(call.attributes, "epsilon")}},
                        {x, call.inputs[3 + o]},
                        {x.type}};
      x.data = run_in_double(norm)[0].data;
    }
    for (std::size_t i = 0; i < x.data.size(); ++i) {
      const std::size_t d = i % head;
      const std::size_t partner = d < half ? i + half : d < 2 * half ? i - half : i;
      bounds[o].errors.push_back((error + g(3) * (1 + error)) * largest *
                                 (std::abs(x.data[i]) + std::abs(x.data[partner])));
    }
  }
  return bounds;
}

// Rows that the sums over all rows take at a time; double adds up what they leave.
constexpr double kRowsOfPartial = 64;

// x·rstd has relative error γ_W (half of the mean's, by the root); its rounding to storage is a
// second rounding of the output.
std::vector<Bound> rms_norm_bounds(const OpCall& call, std::span<const Values> wants) {
  const Data& x = call.inputs[0].data;
  const bool to_weight = call.op == "rms_norm_weight_gradient";
  const auto width = to_weight ? static_cast<std::size_t>(spec::get_int(call.attributes, "width"))
                               : call.inputs[1].data.size();
  const double w = row_roundings(static_cast<double>(width)) + kFunction;
  if (call.op == "add_rms_norm") {
    // The sum is rounded once; y scales with it, and its mean square too.
    Bound sum, y = relative(wants[1], g(w) + 2 * unit_roundoff(call.inputs[0].type.dtype));
    for (std::size_t i = 0; i < x.size(); ++i)
      sum.errors.push_back(g(2) * (std::abs(x[i]) + std::abs(call.inputs[2].data[i])));
    y.num_roundings = 2;
    return {sum, y};
  }
  if (call.op == "rms_norm") {
    Bound bound = relative(wants[0], g(w));
    bound.num_roundings = 2;
    return {bound};
  }
  const double epsilon = spec::get_double(call.attributes, "epsilon");
  const Data& dy = call.inputs[to_weight ? 1 : 2].data;
  const double num_runs = static_cast<double>(x.size() / std::max<std::size_t>(width, 1));
  // The stored normalised value may be the one that is multiplied.
  const double operand = unit_roundoff(call.inputs[0].type.dtype);
  Bound bound{.errors = Data(wants[0].data.size(), 0.0)};
  for (std::size_t begin = 0; begin < x.size(); begin += width) {
    double squares = 0, mean = 0;
    for (std::size_t j = 0; j < width; ++j) squares += x[begin + j] * x[begin + j];
    const double rstd = 1 / std::sqrt(squares / static_cast<double>(width) + epsilon);
    if (to_weight) {
      for (std::size_t j = 0; j < width; ++j)
        bound.errors[j] += (g(w + std::min(num_runs, kRowsOfPartial) + 2) + operand) *
                           std::abs(dy[begin + j] * x[begin + j]) * rstd;
      continue;
    }
    const Data& weight = call.inputs[1].data;
    for (std::size_t j = 0; j < width; ++j)
      mean +=
          std::abs(weight[j] * dy[begin + j] * x[begin + j]) * rstd / static_cast<double>(width);
    for (std::size_t j = 0; j < width; ++j)
      bound.errors[begin + j] =
          g(3 * w) * rstd *
          (std::abs(weight[j] * dy[begin + j]) + std::abs(x[begin + j]) * rstd * mean);
    // What the residual is added to is rounded first.
    for (std::size_t j = begin; call.inputs.size() > 3 && j < begin + width; ++j)
      bound.errors[j] += operand * std::abs(wants[0].data[j] - call.inputs[3].data[j]) +
                         g(2) * std::abs(call.inputs[3].data[j]);
  }
  return {bound};
}

// A row of layer_norm in the f32 of a kernel.
struct CentredRow {
  double mean = 0, rstd = 0;
  double of_mean = 0;  // error of the mean: of its sum, whose terms may cancel
  double of_rstd = 0;  // relative error; a shift of the mean enters the variance squared
  // The normalised value, and its error.
  double value(double x) const { return (x - mean) * rstd; }
  double error(double x) const {
    return (1 + of_rstd) * of_mean * rstd + (of_rstd + g(2)) * std::abs(value(x));
  }
};

CentredRow centred_row(const Data& x, std::size_t begin, std::size_t width, double epsilon) {
  const auto count = static_cast<double>(width);
  CentredRow row;
  double magnitude = 0, variance = 0;
  for (std::size_t j = begin; j < begin + width; ++j) {
    row.mean += x[j] / count;
    magnitude += std::abs(x[j]) / count;
  }
  for (std::size_t j = begin; j < begin + width; ++j)
    variance += (x[j] - row.mean) * (x[j] - row.mean) / count;
  row.rstd = 1 / std::sqrt(variance + epsilon);
  row.of_mean = g(row_roundings(count) + 2) * magnitude;
  const double shift = row.of_mean * row.rstd;
  row.of_rstd = g(row_roundings(count) + kFunction) + shift * shift;
  return row;
}

// Errors of weight · x̂ + bias.
void add_layer_norm(const OpCall& call, const CentredRow& row, std::size_t begin, Data& errors) {
  const Data &x = call.inputs[0].data, &weight = call.inputs[1].data, &bias = call.inputs[2].data;
  for (std::size_t j = 0; j < weight.size(); ++j) {
    const double value = x[begin + j], product = std::abs(weight[j] * row.value(value));
    errors[begin + j] =
        (1 + g(2)) * std::abs(weight[j]) * row.error(value) + g(2) * (product + std::abs(bias[j]));
  }
}

// Errors of rstd · (g − m − x̂ · n), m the mean of g = weight · dy, n that of g · x̂.
void add_layer_norm_input(const OpCall& call, const CentredRow& row, std::size_t begin,
                          Data& errors) {
  const Data &x = call.inputs[0].data, &weight = call.inputs[1].data, &dy = call.inputs[2].data;
  const auto count = static_cast<double>(weight.size());
  const double w = row_roundings(count);
  double m = 0, n = 0, of_n = 0;
  for (std::size_t j = 0; j < weight.size(); ++j) {
    const double gradient = std::abs(weight[j] * dy[begin + j]) / count;
    m += gradient;
    n += gradient * std::abs(row.value(x[begin + j]));
    of_n += gradient * row.error(x[begin + j]);
  }
  of_n += g(w + 4) * (n + of_n);
  for (std::size_t j = 0; j < weight.size(); ++j) {
    const double value = std::abs(row.value(x[begin + j])), of_value = row.error(x[begin + j]);
    const double terms = std::abs(weight[j] * dy[begin + j]) + m + value * n;
    const double error = g(w + 2) * m + of_value * n + (value + of_value) * of_n;
    errors[begin + j] =
        row.rstd * (1 + row.of_rstd) * ((row.of_rstd + g(6)) * terms + (1 + g(6)) * error);
  }
}

// Errors of the sums over rows of dy · x̂ and of dy, whose partial sums double adds up.
void add_layer_norm_weight(const OpCall& call, const CentredRow& row, std::size_t begin,
                           std::vector<Bound>& bounds) {
  const Data &x = call.inputs[0].data, &dy = call.inputs[1].data;
  const double sum = g(std::min(static_cast<double>(rows(call.inputs[0])), kRowsOfPartial) + 2);
  for (std::size_t j = 0; j < bounds[0].errors.size(); ++j) {
    const double d = std::abs(dy[begin + j]), value = x[begin + j];
    bounds[0].errors[j] += d * ((1 + sum) * row.error(value) + sum * std::abs(row.value(value)));
    bounds[1].errors[j] += sum * d;
  }
}

std::vector<Bound> layer_norm_bounds(const OpCall& call, std::span<const Values> wants) {
  const Data& x = call.inputs[0].data;
  const std::size_t width = columns(call.inputs[0]);
  std::vector<Bound> bounds;
  for (const Values& want : wants) bounds.push_back({.errors = Data(want.data.size(), 0.0)});
  for (std::size_t begin = 0; begin < x.size(); begin += width) {
    const CentredRow row =
        centred_row(x, begin, width, spec::get_double(call.attributes, "epsilon"));
    if (call.op == "layer_norm")
      add_layer_norm(call, row, begin, bounds[0].errors);
    else if (call.op == "layer_norm_input_gradient")
      add_layer_norm_input(call, row, begin, bounds[0].errors);
    else
      add_layer_norm_weight(call, row, begin, bounds);
  }
  return bounds;
}

// Statistics of norms: rstd, or rstd and mean. In the sum each element is off by its rounding.
std::vector<Bound> norm_statistics_bounds(const OpCall& call, std::span<const Values> wants) {
  const bool is_sum = call.op == "add_norm_statistics";
  const bool is_rms = spec::get_string(call.attributes, "norm") == "rms";
  Data x = call.inputs[0].data;
  for (std::size_t i = 0; is_sum && i < x.size(); ++i) x[i] += call.inputs[1].data[i];
  const std::size_t width = columns(call.inputs[0]);
  const double u = is_sum ? unit_roundoff(call.inputs[0].type.dtype) + g(2) : 0;
  Bound sum, statistics;
  for (std::size_t i = 0; is_sum && i < x.size(); ++i)
    sum.errors.push_back(g(2) * (std::abs(x[i]) + std::abs(call.inputs[1].data[i])));
  const double epsilon = spec::get_double(call.attributes, "epsilon");
  for (std::size_t begin = 0; width > 0 && begin < x.size(); begin += width) {
    if (is_rms) {
      const double rstd = wants.back().data[begin / width];
      statistics.errors.push_back((g(row_roundings(static_cast<double>(width)) + kFunction) + u) *
                                  (1 + u) * rstd);
      continue;
    }
    const CentredRow row = centred_row(x, begin, width, epsilon);
    double largest = 0;
    for (std::size_t j = begin; j < begin + width; ++j) largest = std::max(largest, std::abs(x[j]));
    // An element that moves by e moves rstd by at most e · rstd of it.
    const double moved = u * largest;
    statistics.errors.push_back(row.rstd * (row.of_rstd + 2 * moved * row.rstd));
    statistics.errors.push_back(row.of_mean + moved);
  }
  return is_sum ? std::vector<Bound>{sum, statistics} : std::vector<Bound>{statistics};
}

std::vector<Bound> cross_entropy_bounds(const OpCall& call) {
  const Values &logits = call.inputs[0], &labels = call.inputs[1];
  const std::size_t width = columns(logits), num_rows = rows(labels);
  const double v = static_cast<double>(width);
  const bool backward = call.op == "cross_entropy_gradient";
  const double factor =
      std::abs(call.inputs[2].data[0] * (backward ? call.inputs[4].data[0] : 1.0));
  const std::size_t weights = backward ? 5 : 3;
  std::vector<Bound> bounds(backward ? 1 : 2);
  if (backward) bounds[0].errors.assign(logits.data.size(), 0.0);
  double loss_error = 0, magnitude = 0;
  for (std::size_t t = 0; t < num_rows; ++t) {
    const Softmax s = softmax_of(logits, t);
    if (!backward) bounds[1].errors.push_back(lse_error(s, v));
    const double weight =
        call.inputs.size() > weights ? std::abs(call.inputs[weights].data[t]) : 1.0;
    if (labels.data[t] < 0 || weight == 0) continue;
    const auto label = static_cast<std::size_t>(labels.data[t]);
    if (!backward) {
      loss_error += weight * lse_error(s, v);
      magnitude += weight * (std::abs(s.lse) + std::abs(logits.data[t * width + label]));
      continue;
    }
    for (std::size_t i = 0; i < width; ++i) {
      const double logit = logits.data[t * width + i], p = std::exp(logit - s.lse);
      bounds[0].errors[t * width + i] =
          factor * weight *
          (probability_error(s, logit, v) * p + g(5) * (p + (i == label ? 1.0 : 0.0)));
    }
  }
  if (!backward)
    bounds[0].errors = {factor * (loss_error + g(4) * magnitude)};  // double adds up losses
  return bounds;
}

// A margin is one difference of given numbers.
std::vector<Bound> label_log_probability_bounds(const OpCall& call) {
  const Values &logits = call.inputs[0], &labels = call.inputs[1];
  const std::size_t width = columns(logits), num_rows = rows(labels);
  std::vector<Bound> bounds(2, {.errors = Data(num_rows, 0.0)});
  for (std::size_t t = 0; t < num_rows; ++t) {
    if (labels.data[t] < 0) continue;
    const Softmax s = softmax_of(logits, t);
    const double of_label = logits.data[t * width + static_cast<std::size_t>(labels.data[t])];
    bounds[0].errors[t] =
        lse_error(s, static_cast<double>(width)) + g(4) * (std::abs(s.lse) + std::abs(of_label));
    double largest = 0;
    for (std::size_t i = 0; i < width; ++i)
      largest = std::max(largest, std::abs(logits.data[t * width + i]));
    bounds[1].errors[t] = g(1) * (std::abs(of_label) + largest);
  }
  return bounds;
}

std::vector<Bound> z_loss_bounds(const OpCall& call) {
  const Values& logits = call.inputs[0];
  const std::size_t width = columns(logits), num_rows = rows(logits);
  const double e = static_cast<double>(width);
  const bool backward = call.op == "router_z_loss_gradient";
  const std::size_t first = backward ? 2 : 1;  // of documents and scale, where there are any
  const Values* documents = call.inputs.size() > first ? &call.inputs[first] : nullptr;
  const double scale = documents != nullptr ? std::abs(call.inputs[first + 1].data[0])
                                            : 1.0 / std::max(static_cast<double>(num_rows), 1.0);
  Bound bound;
  double error = 0;
  for (std::size_t t = 0; t < num_rows; ++t) {
    const Softmax s = softmax_of(logits, t);
    const bool counts = documents == nullptr || documents->data[t] >= 0;
    // Squares are summed in double.
    if (counts) error += 2 * std::abs(s.lse) * lse_error(s, e) + g(6) * s.lse * s.lse;
    for (std::size_t i = 0; backward && i < width; ++i) {
      const double logit = logits.data[t * width + i], p = std::exp(logit - s.lse);
      const double factor = counts ? 2 * std::abs(call.inputs[1].data[0]) * scale : 0.0;
      bound.errors.push_back(
          factor * p *
          (lse_error(s, e) + std::abs(s.lse) * (probability_error(s, logit, e) + g(6))));
    }
  }
  if (!backward) bound.errors = {error * scale};
  return {bound};
}

// All terms are positive but for dloss, and every sum is of doubles.
std::vector<Bound> balance_bounds(std::span<const Values> wants) {
  return {relative(wants[0], g(8))};
}

// Sums in double by contract: a handful of roundings of numbers of this size, which cancel.
std::vector<Bound> preference_bounds(const OpCall& call, std::span<const Values> wants) {
  double size = 1;
  for (const std::size_t input : {0, 1})
    for (const double value : call.inputs[input].data) size += std::abs(value);
  const double slope = size * size, terms = static_cast<double>(call.inputs[0].data.size());
  std::vector<Bound> bounds;
  for (const Values& want : wants)
    bounds.push_back(
        {.errors = Data(want.data.size(), gamma(terms + kFunction, DType::kFloat64) * slope)});
  return bounds;
}

// Scalars (1 - βᵗ, lr·decay) are computed in double by contract, so only elementwise steps count.
// Moments in bf16 go to either neighbour, which is two roundings to the nearest one. For a
// parameter in its upper and lower 16 bits, the upper one is the rounded parameter. The lower one
// may be anything, for the last bit of a parameter decides it: ops/identity_test.cpp compares its
// bits with those of the whole parameter. An 8-bit value may be a neighbour if f32 and double are
// on two sides of a threshold; identity_test.cpp has data on which they cannot.
std::vector<Bound> adamw_bounds(const OpCall& call, std::span<const Values> wants) {
  const bool is_split = spec::get_bool_or(call.attributes, "split", false);
  const std::size_t begin = is_split ? 2 : 1;  // of gradient and moments among inputs
  const double beta1 = spec::get_double(call.attributes, "beta1");
  const double beta2 = spec::get_double(call.attributes, "beta2");
  const double epsilon = spec::get_double(call.attributes, "epsilon");
  const double clip = call.inputs[begin + 3].data[0], lr = call.inputs[begin + 4].data[0],
               step = call.inputs[begin + 5].data[0];
  const bool is_quantized = call.inputs[begin + 1].type.is_quantized();
  const TensorType& type = call.inputs[0].type;
  const std::size_t num_elements = call.inputs[0].data.size();
  const auto block_of = [&](std::size_t i) {  // tiles of 16 by 16
    const auto side = static_cast<std::size_t>(kBlockSide);
    const auto width = static_cast<std::size_t>(type.dim(-1)),
               rows = static_cast<std::size_t>(type.dim(-2));
    const std::size_t row = i / width;
    return (row / rows * ceil_div(rows, side) + row % rows / side) * ceil_div(width, side) +
           i % width / side;
  };
  const auto value_of = [&](std::size_t moment, std::size_t i) {
    const DynamicMap& map = moment == 0 ? signed_map() : unsigned_map();
    const auto code = static_cast<std::size_t>(call.inputs[begin + 1 + moment].data[i]);
    return map.values[code] * call.inputs[begin + 1 + moment].data[num_elements + block_of(i)];
  };
  Bound parameter, first, second;
  std::array<Data, 2> scales;
  if (is_quantized)
    for (Data& errors : scales) errors.resize(call.inputs[begin + 1].data.size() - num_elements);
  for (std::size_t i = 0; i < num_elements; ++i) {
    const double m = is_quantized ? value_of(0, i) : call.inputs[begin + 1].data[i];
    const double gradient = call.inputs[begin].data[i] * clip;
    const double moment = std::abs(m) + (1 - beta1) * (std::abs(gradient) + std::abs(m));
    const double v = is_quantized ? beta2 * value_of(1, i) + (1 - beta2) * gradient * gradient
                                  : wants[begin + 1].data[i];
    const double update = lr / (1 - std::pow(beta1, step)) * moment /
                          (std::sqrt(v / (1 - std::pow(beta2, step))) + epsilon);
    const bool skipped = !std::isfinite(clip);
    // A half may be off by as much as it leaves out.
    const double largest = std::abs(call.inputs[0].data[i]) * (is_split ? 1.01 : 1);
    parameter.errors.push_back(skipped ? 0 : g(kFunction + 4) * (largest + update));
    first.errors.push_back(skipped ? 0 : is_quantized ? 1 : g(6) * moment);
    second.errors.push_back(skipped ? 0 : is_quantized ? 1 : g(6) * v);
    if (!is_quantized || skipped) continue;
    double& error = scales[0][block_of(i)];
    error = std::max(error, g(6) * moment);
    scales[1][block_of(i)] = std::max(scales[1][block_of(i)], g(6) * v);
  }
  first.errors.insert(first.errors.end(), scales[0].begin(), scales[0].end());
  second.errors.insert(second.errors.end(), scales[1].begin(), scales[1].end());
  if (call.attributes.contains("stream")) first.num_roundings = second.num_roundings = 2;
  std::vector<Bound> bounds{parameter};
  if (is_split) bounds.push_back({.errors = Data(parameter.errors.size(), 65535.0)});
  bounds.push_back(std::move(first));
  bounds.push_back(std::move(second));
  // Packings are the parameter, rounded once more.
  const bool rounds_again = !is_split;
  while (bounds.size() < call.outputs.size()) {
    bounds.push_back(parameter);
    bounds.back().num_roundings = rounds_again ? 2 : 1;
  }
  return bounds;
}

// Angles are fp32 products and equal on both sides; cosine and sine are off by ULPs of the scale.
Bound rope_table_bound(const Values& want) {
  double largest = 0;
  for (const double value : want.data) largest = std::max(largest, std::abs(value));
  return {.errors = Data(want.data.size(), g(kFunction) * largest)};
}

}  // namespace

std::vector<Bound> nonlinear_bounds(const OpCall& call, std::span<const Values> wants,
                                    std::string_view row) {
  const std::string_view op = call.op;
  if (op == "activation" || op == "activation_gradient") return activation_bounds(call);
  if (op.substr(0, 8) == "rms_norm" || op == "add_rms_norm") return rms_norm_bounds(call, wants);
  if (op.substr(0, 10) == "layer_norm") return layer_norm_bounds(call, wants);
  if (op.ends_with("norm_statistics")) return norm_statistics_bounds(call, wants);
  if (op == "cross_entropy" || op == "cross_entropy_gradient") return cross_entropy_bounds(call);
  if (op == "label_log_probabilities") return label_log_probability_bounds(call);
  if (op == "head_log_probabilities") return head_log_probability_bounds(call);
  if (op.substr(0, 9) == "head_loss") return head_loss_bounds(call);
  if (op.find("linear_activation") != std::string_view::npos) return linear_activation_bounds(call);
  if (op == "router_z_loss" || op == "router_z_loss_gradient") return z_loss_bounds(call);
  if (op.find("balanc") != std::string_view::npos) return balance_bounds(wants);
  if (op == "preference_loss") return preference_bounds(call, wants);
  if (op.starts_with("gate_rows")) return gate_rows_bounds(call);
  if (op == "router") return router_bounds(call, wants);
  if (op == "router_gradient") return router_gradient_bounds(call);
  if (op == "optimizer_step") return adamw_bounds(call, wants);
  if (op == "rope_pair") return rope_pair_bounds(call);
  if (op == "rope_table") return {rope_table_bound(wants[0])};
  if (op == "clip_factor" || op == "global_norm") {
    std::size_t terms = 0;
    for (const Values& input : call.inputs) terms += input.data.size();
    return {relative(wants[0], g(static_cast<double>(terms) + kFunction))};
  }
  if (op.starts_with("attention") || op == "sinks_gradient")
    return attention_bounds(call, wants, row);
  throw InvalidArgument(
      fmt::format("[tolerance] no bound for op '{}'; add one to tests/support/tolerance*.cpp", op));
}

}  // namespace anabatic::testing
