// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <cmath>
#include <limits>
#include <span>

#include "kernels/ref/access.h"
#include "kernels/ref/int8_head.h"
#include "kernels/ref/rows.h"
#include "spec/head_inputs.h"

namespace anabatic::kernels::ref {
namespace {

// What a row's own loss counts: input `weights` where the op has it, 0 for an ignored label.
double row_weight(const Arguments& args, std::size_t weights, std::int64_t t, std::int64_t label) {
  if (label == kIgnoredLabel) return 0;
  return args.inputs.size() > weights ? load(args.inputs[weights], t) : 1.0;
}

// Writes the loss; returns the gradients of the rows' weighted losses, [rows, classes].
double* head_gradients(const Arguments& args) {
  const TensorView &x = args.inputs[0], &weight = args.inputs[1], &labels = args.inputs[2];
  const std::int64_t width = columns(x), num_classes = rows(weight);
  auto* all = reinterpret_cast<double*>(args.workspace);
  double sum = 0;
  for (std::int64_t t = 0; t < rows(x); ++t) {
    double* row = all + t * num_classes;
    const std::int64_t label = checked_label(labels, t, num_classes);
    const double row_factor =
        row_weight(args, spec::head_weights_input(*args.attributes), t, label);
    std::fill(row, row + num_classes, 0.0);
    if (row_factor == 0) continue;
    for (std::int64_t i = 0; i < num_classes; ++i)
      for (std::int64_t k = 0; k < width; ++k)
        row[i] += load(x, t * width + k) * load(weight, i * width + k);
    const double of_label = row[label], largest = *std::max_element(row, row + num_classes);
    double total = 0;
    for (std::int64_t i = 0; i < num_classes; ++i) total += std::exp(row[i] - largest);
    const double lse = largest + std::log(total);
    sum += row_factor * (lse - of_label);
    for (std::int64_t i = 0; i < num_classes; ++i)
      row[i] = row_factor * (std::exp(row[i] - lse) - (i == label ? 1.0 : 0.0));
  }
  put(args, 0, 0, load(args.inputs[3], 0) * sum);
  return all;
}

}  // namespace

std::int64_t checked_label(const TensorView& labels, std::int64_t t, std::int64_t num_classes) {
  const std::int64_t label = load_index(labels, t);
  ANABATIC_REQUIRE(label == kIgnoredLabel || (0 <= label && label < num_classes),
                   "[cross_entropy] expected labels in [0, {}) or -100, got {}", num_classes,
                   label);
  return label;
}

double log_sum_exp(const TensorView& view, std::int64_t begin, std::int64_t count) {
  double largest = -std::numeric_limits<double>::infinity();
  for (std::int64_t i = 0; i < count; ++i) largest = std::max(largest, load(view, begin + i));
  if (std::isinf(largest) && largest < 0) return largest;
  double sum = 0;
  for (std::int64_t i = 0; i < count; ++i) sum += std::exp(load(view, begin + i) - largest);
  return largest + std::log(sum);
}

void cross_entropy(const Arguments& args) {
  const TensorView &logits = args.inputs[0], &labels = args.inputs[1];
  const std::int64_t width = columns(logits);
  double sum = 0;
  for (std::int64_t t = 0; t < rows(labels); ++t) {
    const double lse = log_sum_exp(logits, t * width, width);
    store(args.outputs[1], t, lse);
    const std::int64_t label = checked_label(labels, t, width);
    const double row_factor = row_weight(args, 3, t, label);
    if (row_factor != 0) sum += row_factor * (lse - load(logits, t * width + label));
  }
  store(args.outputs[0], 0, load(args.inputs[2], 0) * sum);
}

void cross_entropy_gradient(const Arguments& args) {
  const TensorView &logits = args.inputs[0], &labels = args.inputs[1], &lse = args.inputs[3];
  const double factor = load(args.inputs[2], 0) * load(args.inputs[4], 0);
  const std::int64_t width = columns(logits);
  for (std::int64_t t = 0; t < rows(labels); ++t) {
    const std::int64_t label = checked_label(labels, t, width);
    const double row_factor = row_weight(args, 5, t, label);
    for (std::int64_t i = 0; i < width; ++i) {
      const double p = std::exp(load(logits, t * width + i) - load(lse, t));
      const double gradient =
          row_factor == 0 ? 0.0 : factor * row_factor * (p - (i == label ? 1.0 : 0.0));
      store(args.outputs[0], t * width + i, gradient);
    }
  }
}

std::int64_t head_loss_workspace_bytes(const spec::Problem& problem) {
  return problem.inputs[0].dim(0) * problem.inputs[1].dim(0) * std::int64_t{sizeof(double)};
}

void head_loss(const Arguments& args) { head_gradients(args); }

namespace {

void put_input_gradient(const Arguments& args, const double* dlogits, double factor) {
  const TensorView &x = args.inputs[0], &weight = args.inputs[1];
  const std::int64_t width = columns(x), num_classes = rows(weight);
  for (std::int64_t t = 0; t < rows(x); ++t)
    for (std::int64_t k = 0; k < width; ++k) {
      double sum = 0;
      for (std::int64_t i = 0; i < num_classes; ++i)
        sum += dlogits[t * num_classes + i] * load(weight, i * width + k);
      put(args, 1, t * width + k, factor * sum);
    }
}

}  // namespace

double head_seed(const Arguments& args) {
  const double seed = spec::get_double(*args.attributes, "dloss") * load(args.inputs[3], 0);
  return spec::is_loss_scaled(*args.attributes)
             ? seed * load(args.inputs[spec::kHeadLossScaleInput], 0)
             : seed;
}

void head_loss_with_input_gradient(const Arguments& args) {
  if (args.attributes->contains("fallback")) return int8_head_loss(args);
  const double* dlogits = head_gradients(args);
  put_input_gradient(args, dlogits, head_seed(args));
}

void head_loss_with_gradient(const Arguments& args) {
  if (args.attributes->contains("fallback")) return int8_head_loss(args);
  const TensorView &x = args.inputs[0], &weight = args.inputs[1];
  const std::int64_t width = columns(x), num_rows = rows(x), num_classes = rows(weight);
  const double* dlogits = head_gradients(args);
  const double factor = head_seed(args);
  for (std::int64_t i = 0; i < num_classes; ++i)
    for (std::int64_t k = 0; k < width; ++k) {
      double sum = 0;
      for (std::int64_t t = 0; t < num_rows; ++t)
        sum += dlogits[t * num_classes + i] * load(x, t * width + k);
      put(args, 2, i * width + k, factor * sum);
    }
  put_input_gradient(args, dlogits, factor);  // last: dx may stand where x does
}

namespace {

// Row t has these logits: the label's log-probability, and its logit less the largest other.
void put_label(const Arguments& args, std::int64_t t, std::int64_t label,
               std::span<const double> logits) {
  double log_probability = 0, margin = 0;
  if (label != kIgnoredLabel) {
    const double infinity = std::numeric_limits<double>::infinity();
    double largest = -infinity, other = -infinity, sum = 0;
    for (std::size_t i = 0; i < logits.size(); ++i) {
      largest = std::max(largest, logits[i]);
      if (static_cast<std::int64_t>(i) != label) other = std::max(other, logits[i]);
    }
    for (const double logit : logits) sum += std::exp(logit - largest);
    const double of_label = logits[static_cast<std::size_t>(label)];
    log_probability = of_label - (largest + std::log(sum));
    margin = of_label - other;
  }
  store(args.outputs[0], t, log_probability);
  store(args.outputs[1], t, margin);
}

}  // namespace

std::int64_t label_log_probabilities_workspace_bytes(const spec::Problem& problem) {
  const bool is_of_head = problem.inputs.size() == 3;
  return problem.inputs[is_of_head ? 1 : 0].dim(is_of_head ? 0 : 1) * std::int64_t{sizeof(double)};
}

void label_log_probabilities(const Arguments& args) {
  const TensorView &logits = args.inputs[0], &labels = args.inputs[1];
  const std::int64_t width = columns(logits);
  const std::span row(reinterpret_cast<double*>(args.workspace), static_cast<std::size_t>(width));
  for (std::int64_t t = 0; t < rows(labels); ++t) {
    const std::int64_t label = checked_label(labels, t, width);
    for (std::int64_t i = 0; i < width; ++i)
      row[static_cast<std::size_t>(i)] = load(logits, t * width + i);
    put_label(args, t, label, row);
  }
}

void head_log_probabilities(const Arguments& args) {
  const TensorView &x = args.inputs[0], &weight = args.inputs[1], &labels = args.inputs[2];
  const std::int64_t width = columns(x), num_classes = rows(weight);
  const std::span row(reinterpret_cast<double*>(args.workspace),
                      static_cast<std::size_t>(num_classes));
  for (std::int64_t t = 0; t < rows(x); ++t) {
    const std::int64_t label = checked_label(labels, t, num_classes);
    std::fill(row.begin(), row.end(), 0.0);
    for (std::int64_t i = 0; i < num_classes; ++i)
      for (std::int64_t k = 0; k < width; ++k)
        row[static_cast<std::size_t>(i)] += load(x, t * width + k) * load(weight, i * width + k);
    put_label(args, t, label, row);
  }
}

}  // namespace anabatic::kernels::ref
