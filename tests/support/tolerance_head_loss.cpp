// SPDX-License-Identifier: Apache-2.0
// Bounds of head_loss. With δ the error of a row's logits, p = exp(l - lse) has relative error of
// at most 2δ (numerator and denominator) plus γ of the sum, and so has 1 - p of the label, the sum
// of the other p. A bf16 product rounds p and x to bf16 first.
#include <algorithm>
#include <cmath>

#include "spec/head_inputs.h"
#include "support/tolerance.h"

namespace anabatic::testing {
namespace {

constexpr double kFunction = 8.0;
constexpr double kU = 0x1.0p-24;

double g(double num_operations) { return 2 * gamma(num_operations, DType::kFloat32); }

struct Row {
  std::vector<double> logits;
  double error = 0, lse = 0;  // of the logits; log-sum-exp

  Row(const OpCall& call, std::size_t t, std::size_t width, std::size_t classes) {
    const std::vector<double>&x = call.inputs[0].data, &weight = call.inputs[1].data;
    const double product =
        gamma(blocked_roundings(static_cast<double>(width)) + 2, DType::kFloat32);
    double largest = -HUGE_VAL, sum = 0;
    for (std::size_t i = 0; i < classes; ++i) {
      double logit = 0, magnitude = 0;
      for (std::size_t k = 0; k < width; ++k) {
        const double term = x[t * width + k] * weight[i * width + k];
        logit += term;
        magnitude += std::abs(term);
      }
      logits.push_back(logit);
      largest = std::max(largest, logit);
      // The shift is subtracted before the exponential.
      error = std::max(error, product * magnitude + 4 * kU * (std::abs(logit) + 1));
    }
    for (const double logit : logits) sum += std::exp(logit - largest);
    lse = largest + std::log(sum);
  }
};

// A row's exponentials are added up in f32 within a step of so many classes, and in double over
// steps.
constexpr double kStepClasses = 480;
double sum_of_exponentials(double num_classes) {
  return g(row_roundings(std::min(num_classes, kStepClasses)) + kFunction);
}

}  // namespace

std::vector<Bound> head_log_probability_bounds(const OpCall& call) {
  const Values &x = call.inputs[0], &weight = call.inputs[1], &labels = call.inputs[2];
  const auto width = static_cast<std::size_t>(x.type.dim(1));
  const auto classes = static_cast<std::size_t>(weight.type.dim(0));
  std::vector<Bound> bounds(2, {.errors = std::vector<double>(labels.data.size(), 0.0)});
  for (std::size_t t = 0; t < labels.data.size(); ++t) {
    if (labels.data[t] < 0) continue;
    const Row row(call, t, width, classes);
    const double of_label = std::abs(row.logits[static_cast<std::size_t>(labels.data[t])]);
    double largest = 0;
    for (const double logit : row.logits) largest = std::max(largest, std::abs(logit));
    bounds[0].errors[t] = 2 * row.error + sum_of_exponentials(static_cast<double>(classes)) +
                          4 * kU * (std::abs(row.lse) + of_label);
    bounds[1].errors[t] = 2 * row.error + 2 * kU * (of_label + largest);
  }
  return bounds;
}

std::vector<Bound> head_loss_bounds(const OpCall& call) {
  const Values &x = call.inputs[0], &weight = call.inputs[1], &labels = call.inputs[2];
  const auto width = static_cast<std::size_t>(x.type.dim(1));
  const auto classes = static_cast<std::size_t>(weight.type.dim(0));
  const bool backward = call.op != "head_loss";
  const double scale = std::abs(call.inputs[3].data[0]);
  double factor = backward ? scale * std::abs(spec::get_double(call.attributes, "dloss")) : 0;
  if (spec::is_loss_scaled(call.attributes))
    factor *= std::abs(call.inputs[spec::kHeadLossScaleInput].data[0]);
  const std::size_t weights = spec::head_weights_input(call.attributes);
  const double operand = unit_roundoff(x.type.dtype);
  // Sums of e: a step's in f32, all steps in double. Of e·w: a step has one block or two. Of rows:
  // the smallest block that a shape may ask for.
  constexpr double kLeastStepBlock = kStepClasses / 2, kLeastRows = 64;
  const auto num_classes = static_cast<double>(classes),
             num_rows = static_cast<double>(labels.data.size());
  const double sums = sum_of_exponentials(num_classes),
               over_classes =
                   gamma(blocked_roundings(num_classes, kLeastStepBlock) + 4, DType::kFloat32),
               over_rows = gamma(blocked_roundings(num_rows, kLeastRows) + 4, DType::kFloat32);
  std::vector<Bound> bounds(backward ? 3 : 1);
  if (backward) {
    bounds[1].errors.assign(x.data.size(), 0.0);
    bounds[2].errors.assign(weight.data.size(), 0.0);
  }
  double loss_error = 0, magnitude = 0;
  for (std::size_t t = 0; t < labels.data.size(); ++t) {
    const double row_weight =
        call.inputs.size() > weights ? std::abs(call.inputs[weights].data[t]) : 1.0;
    if (labels.data[t] < 0 || row_weight == 0) continue;
    const auto label = static_cast<std::size_t>(labels.data[t]);
    const Row row(call, t, width, classes);
    loss_error += row_weight * (2 * row.error + sums);
    magnitude += row_weight * (std::abs(row.lse) + std::abs(row.logits[label]));
    const double row_factor = factor * row_weight;
    const double relative = 4 * row.error + 2 * sums + 2 * operand;
    for (std::size_t i = 0; backward && i < classes; ++i) {
      double d = std::exp(row.logits[i] - row.lse);
      if (i == label) d = -std::expm1(row.logits[i] - row.lse);
      const double to_x = row_factor * ((relative + over_classes) * d + kSmallestNormal);
      const double to_weight = row_factor * ((relative + over_rows) * d + kSmallestNormal);
      for (std::size_t k = 0; k < width; ++k) {
        bounds[1].errors[t * width + k] += to_x * std::abs(weight.data[i * width + k]);
        bounds[2].errors[i * width + k] += to_weight * std::abs(x.data[t * width + k]);
      }
    }
  }
  if (backward) {
    bounds[2].num_additions = std::max(std::ceil(num_rows / kLeastRows), 1.0);
  }
  bounds[0].errors = {scale * (loss_error + 4 * kU * magnitude)};
  return bounds;
}

}  // namespace anabatic::testing
