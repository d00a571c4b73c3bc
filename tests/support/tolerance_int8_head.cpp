// SPDX-License-Identifier: Apache-2.0
// Bounds of the int8 products of head_loss_with_gradient.
//
// From the definition: every row has the bits of its logits, but its own exponentials, whose
// relative error ε is a few units and the error of the shift. Where the values of an interval of
// that width round to several u8 values, an element is off by their distance.
// Where the scale is unsure, it is off by a whole step.
//
// From exact arithmetic: with δ the error of a row's int8 logits, exponentials and their shares are
// off by the factor r = e^2δ - 1, and products of what they then are by the bound of any operands.
#include <algorithm>
#include <cmath>

#include "kernels/ref/int8_products.h"
#include "spec/head_inputs.h"
#include "support/tolerance.h"
#include "tensor/dtype.h"

namespace anabatic::testing {
namespace {

using kernels::ref::CodedLines;

constexpr double kU = 0x1.0p-24, kExponential = 16 * kU, kSlack = 1.01;
constexpr std::size_t kBlock = 128;
constexpr std::size_t kLeastClassesInParts = 2048;
constexpr double kSmallest = 0x1p-100;  // a block below is all zeroes

float scale_of(double largest, float levels) {
  return largest < kSmallest ? 0.0f
                             : to_float(to_bfloat16_up(static_cast<float>(largest) / levels));
}

// A value that lies between these.
struct Interval {
  double low, high;
};
double rounded_to_bf16(double x) { return to_float(to_bfloat16(static_cast<float>(x))); }

// How far apart u8 values of each element of a block may be.
std::vector<double> code_distances(const std::vector<Interval>& block) {
  double low = 0, high = 0;
  for (const Interval& x : block) {
    low = std::max(low, x.low);
    high = std::max(high, x.high);
  }
  const float scale = scale_of(high, 255), other = scale_of(low, 255);
  std::vector<double> distances;
  for (const Interval& x : block) {
    if (scale != other) {
      distances.push_back(scale + x.high - x.low + (other == 0 ? x.high : 0));
    } else if (scale == 0) {
      distances.push_back(0);
    } else {
      const double inverse = 1.0f / scale;
      distances.push_back(scale * (std::nearbyint(x.high * inverse * (1 + kU)) -
                                   std::nearbyint(x.low * inverse * (1 - kU))));
    }
  }
  return distances;
}

std::vector<float> floats_of(const Values& values) {
  return {values.data.begin(), values.data.end()};
}
double decoded(const CodedLines& lines, std::size_t line, std::size_t k) {
  const auto depth = static_cast<std::size_t>(lines.depth),
             block = line * static_cast<std::size_t>(lines.blocks()) + k / kBlock;
  const double code = lines.codes[line * depth + k];
  const double second = lines.falls_back[block] ? lines.second_codes[line * depth + k] / 254.0 : 0;
  return lines.scales[block] * (code + second);
}

// The rows that count, and the operands that all bounds read.
struct Head {
  std::size_t width, classes;
  double scale;
  std::vector<std::size_t> live, labels;
  std::vector<double> weights, seeds;  // of the rows, in magnitude
  std::vector<float> x, weight;        // x of live rows

  explicit Head(const OpCall& call)
      : width(static_cast<std::size_t>(call.inputs[0].type.dim(1))),
        classes(static_cast<std::size_t>(call.inputs[1].type.dim(0))),
        scale(std::abs(call.inputs[3].data[0])),
        weight(floats_of(call.inputs[1])) {
    const auto place = static_cast<std::size_t>(spec::head_weights_input(call.attributes));
    const double loss_scale =
        spec::is_loss_scaled(call.attributes) ? call.inputs[spec::kHeadLossScaleInput].data[0] : 1;
    for (std::size_t t = 0; t < call.inputs[2].data.size(); ++t) {
      const double row_weight =
          call.inputs.size() > place ? std::abs(call.inputs[place].data[t]) : 1;
      if (call.inputs[2].data[t] < 0 || row_weight == 0) continue;
      live.push_back(t);
      weights.push_back(row_weight);
      seeds.push_back(scale * loss_scale * std::abs(spec::get_double(call.attributes, "dloss")) *
                      row_weight);
      labels.push_back(static_cast<std::size_t>(call.inputs[2].data[t]));
      for (std::size_t k = 0; k < width; ++k)
        x.push_back(static_cast<float>(call.inputs[0].data[t * width + k]));
    }
  }
  std::int64_t num_live() const { return static_cast<std::int64_t>(live.size()); }

  // The product of a row with that of a class, and the sum of the magnitudes of its terms.
  double logit(std::size_t row, std::size_t c, double* magnitude = nullptr) const {
    double sum = 0;
    for (std::size_t k = 0; k < width; ++k) {
      const double term = double{x[row * width + k]} * weight[c * width + k];
      sum += term;
      if (magnitude != nullptr) *magnitude += std::abs(term);
    }
    return sum;
  }
  double error_of_label(std::size_t row) const {
    double magnitude = 0;
    const double of_label = logit(row, labels[row], &magnitude);
    return gamma(row_roundings(static_cast<double>(width)) + 2, DType::kFloat32) * magnitude +
           kU * std::abs(of_label);
  }
  std::vector<float> x_by_column() const {
    std::vector<float> result(x.size());
    for (std::size_t i = 0; i < live.size(); ++i)
      for (std::size_t k = 0; k < width; ++k) result[k * live.size() + i] = x[i * width + k];
    return result;
  }
};

// What rows of exponentials have in either bound: e between the bounds of intervals, and sums.
struct Exponentials {
  std::vector<Interval> values;           // [rows, classes]; 0 for the label
  std::vector<double> factors, relative;  // of the gradients; errors of the factors
};

double sum_error(std::size_t classes) {
  return 2 * gamma(row_roundings(static_cast<double>(std::min<std::size_t>(classes, 480))) + 8,
                   DType::kFloat32);
}

Exponentials defined_exponentials(const Head& head, int fallback, double* loss_error) {
  Exponentials result;
  const auto rows = head.num_live(), width = static_cast<std::int64_t>(head.width);
  std::vector<float> logits(head.live.size() * head.classes);
  kernels::ref::add_int8_product(
      kernels::ref::code_lines(head.x, rows, width, fallback),
      kernels::ref::code_tiles(head.weight, static_cast<std::int64_t>(head.classes), width),
      logits);
  for (std::size_t i = 0; i < head.live.size(); ++i) {
    const float* row = logits.data() + i * head.classes;
    const double of_label = head.logit(i, head.labels[i]);
    double largest = of_label, sum = 0;
    for (std::size_t c = 0; c < head.classes; ++c) {
      if (c == head.labels[i]) continue;
      largest = std::max(largest, double{row[c]});
      sum += std::exp(row[c] - of_label);
    }
    const double shift = sum > 1e18 ? largest : of_label, error = head.error_of_label(i);
    double below = 0;  // of the exponents in magnitude
    for (std::size_t c = 0; c < head.classes; ++c)
      below = std::max(below, std::abs(row[c] - shift));
    const double relative = std::expm1(2 * error + 4 * kU * below) + kExponential;
    sum = 0;
    for (std::size_t c = 0; c < head.classes; ++c) {
      const double e = c == head.labels[i] ? 0 : std::exp(row[c] - shift);
      sum += e;
      result.values.push_back({e * (1 - relative), e * (1 + relative)});
    }
    result.factors.push_back(head.seeds[i] / (sum + std::exp(of_label - shift)));
    result.relative.push_back(2 * (relative + sum_error(head.classes)));
    *loss_error +=
        head.weights[i] * (result.relative.back() + error + 8 * kU * (std::abs(of_label) + below));
  }
  return result;
}

// Adds what products of operands in blocks bring to the bound of a sum.
struct SumBound {
  double error = 0, magnitude = 0;

  void add(double distance, double left, double right) {
    error += distance * std::abs(right);
    magnitude += (std::abs(left) + distance) * std::abs(right);
  }
  double total(std::size_t terms) const {
    const auto blocks = static_cast<double>(terms / kBlock + 2);
    return error + gamma(2 * blocks + 4, DType::kFloat32) * magnitude;
  }
};

}  // namespace

std::vector<std::vector<double>> int8_head_definition_tolerances(const OpCall& call,
                                                                 std::span<const Values> wants) {
  const Head head(call);
  const auto fallback = static_cast<int>(spec::get_int(call.attributes, "fallback"));
  std::vector<std::vector<double>> result(3);
  double loss_error = 0;
  const Exponentials e = defined_exponentials(head, fallback, &loss_error);
  result[0].push_back(kSlack * (head.scale * loss_error + 4 * kU * std::abs(wants[0].data[0])));
  const std::size_t rows = head.live.size();

  result[1].assign(call.inputs[0].data.size(), 0.0);
  const std::size_t half = (((head.classes + 1) / 2) + kBlock - 1) / kBlock * kBlock,
                    part = head.classes >= kLeastClassesInParts ? half : head.classes;
  const CodedLines tiles = kernels::ref::code_tiles(
      head.weight, static_cast<std::int64_t>(head.classes), static_cast<std::int64_t>(head.width));
  for (std::size_t i = 0; i < rows; ++i) {
    std::vector<SumBound> sums(head.width);
    for (std::size_t begin = 0; begin < head.classes;) {
      const std::size_t part_end = std::min(head.classes, (begin / part + 1) * part),
                        end = std::min(part_end, begin + kBlock);
      const Interval* first = e.values.data() + i * head.classes;
      const std::vector<Interval> block(first + begin, first + end);
      const std::vector<double> distances = code_distances(block);
      for (std::size_t c = begin; c < end; ++c)
        for (std::size_t k = 0; k < head.width; ++k)
          sums[k].add(distances[c - begin], block[c - begin].high, decoded(tiles, c, k));
      begin = end;
    }
    for (std::size_t k = 0; k < head.width; ++k) {
      const std::size_t at = head.live[i] * head.width + k;
      const double of_label =
          head.seeds[i] * std::abs(double{head.weight[head.labels[i] * head.width + k]});
      const double error =
          e.factors[i] * (sums[k].total(head.classes) + e.relative[i] * sums[k].magnitude) +
          (e.relative[i] + 4 * kU) * of_label;
      result[1][at] = kSlack * (error + 2 * unit_roundoff(DType::kBFloat16) *
                                            (std::abs(wants[1].data[at]) + error));
    }
  }

  const CodedLines x = kernels::ref::code_lines(
      head.x_by_column(), static_cast<std::int64_t>(head.width), head.num_live(), fallback);
  for (std::size_t c = 0; c < head.classes; ++c) {
    std::vector<SumBound> sums(head.width);
    for (std::size_t begin = 0; begin < rows; begin += kBlock) {
      std::vector<Interval> block;
      for (std::size_t i = begin; i < std::min(rows, begin + kBlock); ++i) {
        const Interval& value = e.values[i * head.classes + c];
        block.push_back({rounded_to_bf16(value.low) * e.factors[i] * (1 - e.relative[i]),
                         rounded_to_bf16(value.high) * e.factors[i] * (1 + e.relative[i])});
      }
      const std::vector<double> distances = code_distances(block);
      for (std::size_t i = 0; i < block.size(); ++i)
        for (std::size_t k = 0; k < head.width; ++k)
          sums[k].add(distances[i], block[i].high, decoded(x, k, begin + i));
    }
    for (std::size_t i = 0; i < rows; ++i)
      for (std::size_t k = 0; k < head.width && head.labels[i] == c; ++k) {
        const double term = head.seeds[i] * std::abs(double{head.x[i * head.width + k]});
        sums[k].error += (e.relative[i] + 4 * kU) * term;
        sums[k].magnitude += term;
      }
    for (std::size_t k = 0; k < head.width; ++k)
      result[2].push_back(
          kSlack * (sums[k].total(rows) + gamma(static_cast<double>(rows) + 2, DType::kFloat32) *
                                              std::abs(wants[2].data[c * head.width + k])));
  }
  return result;
}

std::vector<std::vector<double>> int8_head_tolerances(const OpCall& call,
                                                      std::span<const Values> wants) {
  const Head head(call);
  const std::size_t rows = head.live.size();
  const auto lines = head.num_live(), width = static_cast<std::int64_t>(head.width),
             num_classes = static_cast<std::int64_t>(head.classes);
  // Without second values: they make errors smaller.
  const std::vector<double> of_logits = int8_product_tolerances(
      {head.x, lines, width}, {head.weight, num_classes, width, 128}, DType::kFloat32);
  std::vector<std::vector<double>> result(3);
  std::vector<float> largest_exponentials, probabilities(rows * head.classes);
  std::vector<double> growth, factors, exponentials;  // the last one as exact arithmetic has them
  double loss_error = 0;
  for (std::size_t i = 0; i < rows; ++i) {
    double error = 0, sum = 0;
    std::vector<double> logits;
    for (std::size_t c = 0; c < head.classes; ++c) logits.push_back(head.logit(i, c));
    for (std::size_t c = 0; c < head.classes; ++c) {
      sum += std::exp(logits[c] - logits[head.labels[i]]);
      if (c != head.labels[i]) error = std::max(error, of_logits[i * head.classes + c]);
    }
    error += head.error_of_label(i);
    const double r = std::expm1(2 * error) + 0x1p-7;  // and the rounding to bf16
    growth.push_back(r);
    factors.push_back(head.seeds[i] / sum);
    loss_error +=
        head.weights[i] * (error + sum_error(head.classes) + 16 * kU * std::abs(std::log(sum)));
    for (std::size_t c = 0; c < head.classes; ++c) {
      const double e = c == head.labels[i] ? 0 : std::exp(logits[c] - logits[head.labels[i]]);
      exponentials.push_back(e);
      largest_exponentials.push_back(static_cast<float>(e * (1 + r)));
      probabilities[c * rows + i] = static_cast<float>(factors[i] * e * (1 + r));
    }
  }
  result[0].push_back(head.scale * loss_error + 4 * kU * std::abs(wants[0].data[0]));

  // Products of what the operands then are: as operands of any signs, whose steps are longer.
  std::vector<float> by_column(head.weight.size());
  for (std::size_t c = 0; c < head.classes; ++c)
    for (std::size_t k = 0; k < head.width; ++k)
      by_column[k * head.classes + c] = head.weight[c * head.width + k];
  const std::vector<double> to_x =
      int8_product_tolerances({largest_exponentials, lines, num_classes},
                              {by_column, width, num_classes, 128}, DType::kFloat32);
  const std::vector<float> x_by_column = head.x_by_column();
  const std::vector<double> to_weight = int8_product_tolerances(
      {probabilities, num_classes, lines}, {x_by_column, width, lines}, DType::kFloat32);
  result[1].assign(call.inputs[0].data.size(), 0.0);
  result[2].assign(head.weight.size(), 0.0);
  for (std::size_t i = 0; i < rows; ++i)
    for (std::size_t k = 0; k < head.width; ++k) {
      double moved = 0;
      for (std::size_t c = 0; c < head.classes; ++c) {
        const double e = exponentials[i * head.classes + c] * growth[i];
        moved += e * std::abs(double{head.weight[c * head.width + k]});
        result[2][c * head.width + k] +=
            factors[i] * e * std::abs(double{head.x[i * head.width + k]});
      }
      const double share = head.seeds[i] * growth[i];
      const std::size_t label = head.labels[i] * head.width + k, at = head.live[i] * head.width + k;
      const double error = factors[i] * (1 + growth[i]) * (moved + to_x[i * head.width + k]) +
                           share * std::abs(double{head.weight[label]});
      result[1][at] =
          error + unit_roundoff(DType::kBFloat16) * (std::abs(wants[1].data[at]) + error);
      result[2][label] += share * std::abs(double{head.x[i * head.width + k]});
    }
  for (std::size_t j = 0; j < result[2].size(); ++j)
    result[2][j] += to_weight[j] + gamma(static_cast<double>(rows) + 2, DType::kFloat32) *
                                       std::abs(wants[2].data[j]);
  return result;
}

}  // namespace anabatic::testing
