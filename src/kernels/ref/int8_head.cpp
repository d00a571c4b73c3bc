// SPDX-License-Identifier: Apache-2.0
#include "kernels/ref/int8_head.h"

#include <algorithm>
#include <cmath>
#include <vector>

#include "kernels/ref/access.h"
#include "kernels/ref/int8_products.h"
#include "spec/head_inputs.h"

namespace anabatic::kernels::ref {
namespace {

constexpr std::int64_t kLeastClassesInParts = 2048, kBlock = 128;
constexpr double kMostSum = 1e18;

std::size_t at(std::int64_t i) { return static_cast<std::size_t>(i); }

using Floats = std::vector<float>;

// Row i of x is column i of the result.
Floats transposed(const Floats& x, std::int64_t lines, std::int64_t depth) {
  Floats result(x.size());
  for (std::int64_t i = 0; i < lines; ++i)
    for (std::int64_t k = 0; k < depth; ++k) result[at(k * lines + i)] = x[at(i * depth + k)];
  return result;
}

class Int8Head {
 public:
  explicit Int8Head(const Arguments& args)
      : args_(args),
        classes_(rows(args.inputs[1])),
        width_(columns(args.inputs[0])),
        fallback_(static_cast<int>(spec::get_int(*args.attributes, "fallback"))),
        scale_(load(args.inputs[3], 0)),
        seed_(head_seed(args)) {
    const TensorView &x = args.inputs[0], &weight = args.inputs[1], &labels = args.inputs[2];
    const auto weights = at(spec::head_weights_input(*args.attributes));
    for (std::int64_t t = 0; t < rows(x); ++t) {
      const std::int64_t label = checked_label(labels, t, classes_);
      const double row_weight = args.inputs.size() > weights ? load(args.inputs[weights], t) : 1;
      if (label == kIgnoredLabel || row_weight == 0) continue;
      live_.push_back(t);
      row_weights_.push_back(row_weight);
      labels_.push_back(label);
      for (std::int64_t k = 0; k < width_; ++k)
        x_.push_back(static_cast<float>(load(x, t * width_ + k)));
    }
    for (std::int64_t i = 0; i < size(weight); ++i)
      weight_.push_back(static_cast<float>(load(weight, i)));
  }

  void run() {
    find_exponentials();
    put_input_gradient();
    if (args_.outputs.size() > 2) put_weight_gradient();
  }

 private:
  std::int64_t num_live() const { return static_cast<std::int64_t>(live_.size()); }

  // e^(logit - shift) but for the label, its sums and factors; the loss.
  void find_exponentials() {
    exponentials_.resize(at(num_live() * classes_));
    const CodedLines coded = code_lines(x_, num_live(), width_, fallback_);
    if (args_.counts != nullptr) args_.counts->add(counts_of(coded, x_));
    add_int8_product(coded, code_tiles(weight_, classes_, width_), exponentials_);
    double loss = 0;
    for (std::int64_t i = 0; i < num_live(); ++i) {
      float* row = exponentials_.data() + i * classes_;
      const std::int64_t label = labels_[at(i)];
      double product = 0;
      for (std::int64_t k = 0; k < width_; ++k)
        product += double{x_[at(i * width_ + k)]} * weight_[at(label * width_ + k)];
      const auto of_label = static_cast<float>(product);
      float shift = of_label;
      double sum = sum_of(row, label, shift);
      if (!(sum <= kMostSum)) {
        for (std::int64_t j = 0; j < classes_; ++j)
          if (j != label) shift = std::max(shift, row[j]);
        sum = sum_of(row, label, shift);
      }
      const double below = double{of_label} - shift, total = sum + std::exp(below);
      const double row_weight = row_weights_[at(i)], seed = seed_ * row_weight;
      loss += row_weight * (std::log(total) - below);
      factors_.push_back(static_cast<float>(seed / total));
      label_factors_.push_back(static_cast<float>(seed * (sum / total)));
      for (std::int64_t j = 0; j < classes_; ++j)
        row[j] = j == label ? 0.0f : std::exp(row[j] - shift);
    }
    put(args_, 0, 0, scale_ * loss);
  }

  double sum_of(const float* logits, std::int64_t label, float shift) const {
    double sum = 0;
    for (std::int64_t j = 0; j < classes_; ++j)
      if (j != label) sum += std::exp(logits[j] - shift);
    return sum;
  }

  // A chain for each part of the vocabulary.
  void put_input_gradient() {
    const std::int64_t parts = classes_ >= kLeastClassesInParts ? 2 : 1,
                       part = round_up(ceil_div(classes_, parts), kBlock);
    std::vector<double> sums(x_.size());
    for (std::int64_t begin = 0; begin < classes_; begin += part) {
      const std::int64_t count = std::min(part, classes_ - begin);
      Floats of_part, chain(x_.size());
      for (std::int64_t i = 0; i < num_live(); ++i)
        of_part.insert(of_part.end(), exponentials_.begin() + i * classes_ + begin,
                       exponentials_.begin() + i * classes_ + begin + count);
      const Floats weight(weight_.begin() + begin * width_,
                          weight_.begin() + (begin + count) * width_);
      add_int8_product(code_positive_lines(of_part, num_live(), count),
                       transposed_tiles(code_tiles(weight, count, width_)), chain);
      for (std::size_t i = 0; i < sums.size(); ++i) sums[i] += chain[i];
    }
    std::int64_t next = 0;
    for (std::int64_t t = 0; t < rows(args_.inputs[0]); ++t) {
      const std::int64_t i = next;
      const bool is_live = i < num_live() && live_[at(i)] == t;
      next += is_live ? 1 : 0;
      for (std::int64_t k = 0; k < width_; ++k)
        put(args_, 1, t * width_ + k,
            is_live ? factors_[at(i)] * sums[at(i * width_ + k)] -
                          double{label_factors_[at(i)]} * weight_[at(labels_[at(i)] * width_ + k)]
                    : 0.0);
    }
  }

  void put_weight_gradient() {
    const TensorView& dweight = args_.outputs[2];
    Floats probabilities(exponentials_.size()), chain(weight_.size());
    for (std::int64_t i = 0; i < num_live(); ++i)
      for (std::int64_t j = 0; j < classes_; ++j) {
        const BFloat16 e = to_bfloat16(exponentials_[at(i * classes_ + j)]);
        probabilities[at(j * num_live() + i)] = to_float(e) * std::abs(factors_[at(i)]);
      }
    if (adds(args_, 2))
      for (std::int64_t i = 0; i < size(dweight); ++i)
        chain[at(i)] = static_cast<float>(load(dweight, i));
    Floats x = x_;  // with the signs of the factors
    for (std::int64_t i = 0; i < num_live(); ++i)
      for (std::int64_t k = 0; k < width_; ++k)
        if (factors_[at(i)] < 0) x[at(i * width_ + k)] *= -1;
    add_int8_product(code_positive_lines(probabilities, classes_, num_live()),
                     code_lines(transposed(x, num_live(), width_), width_, num_live(), fallback_),
                     chain);
    for (std::int64_t i = 0; i < num_live(); ++i)
      for (std::int64_t k = 0; k < width_; ++k) {
        float& sum = chain[at(labels_[at(i)] * width_ + k)];
        sum = std::fma(-label_factors_[at(i)], x_[at(i * width_ + k)], sum);
      }
    for (std::int64_t i = 0; i < size(dweight); ++i) store(dweight, i, chain[at(i)]);
  }

  const Arguments& args_;
  const std::int64_t classes_, width_;
  const int fallback_;
  const double scale_, seed_;
  std::vector<std::int64_t> live_, labels_;  // rows with a label
  std::vector<double> row_weights_;
  Floats x_, weight_, exponentials_, factors_, label_factors_;
};

}  // namespace

void int8_head_loss(const Arguments& args) { Int8Head(args).run(); }

}  // namespace anabatic::kernels::ref
