// SPDX-License-Identifier: Apache-2.0
// Bounds of routers and gates of rows. Which experts are chosen has none: data where a rounding
// could decide is refused, but for ties that are exact in f32 as well.
#include <algorithm>
#include <cmath>
#include <numeric>

#include "base/error.h"
#include "spec/router.h"
#include "support/tolerance_softmax.h"

namespace anabatic::testing {
namespace {

using Data = std::vector<double>;

std::size_t columns(const Values& values) { return static_cast<std::size_t>(values.type.dim(-1)); }
std::size_t rows(const Values& values) { return static_cast<std::size_t>(values.type.dim(0)); }

double sigmoid(double x) { return 1 / (1 + std::exp(-x)); }

// Roundings of a sigmoid: an exp, a sum and a quotient, what multiplies them, and the product of x
// with log2(e), whose rounding the power turns relative.
double sigmoid_roundings(double x) { return kFunction + 4 + std::abs(x); }

// Scores of one row of logits, and what each is off by: relative to it, and where it underflows.
struct Scores {
  Data values, factors;
  double underflow = 0;

  Scores(const spec::RouterForm& form, const Values& logits, std::size_t t) {
    const bool is_sigmoid = form.score == spec::RouterScore::kSigmoid;
    const std::size_t width = columns(logits);
    const Softmax s = softmax_of(logits, t);
    underflow = is_sigmoid ? kUnderflow : 0;
    for (std::size_t e = 0; e < width; ++e) {
      const double logit = logits.data[t * width + e];
      values.push_back(is_sigmoid ? sigmoid(logit) : std::exp(logit - s.lse));
      factors.push_back(is_sigmoid ? g(sigmoid_roundings(logit))
                                   : probability_error(s, logit, static_cast<double>(width)));
    }
  }
};

// The `count` best of the values must be apart from each other and from the rest.
std::vector<std::size_t> best_of(const Data& values, const Data& errors, std::int64_t count) {
  std::vector<std::size_t> order(values.size());
  std::iota(order.begin(), order.end(), std::size_t{0});
  std::stable_sort(order.begin(), order.end(),
                   [&](std::size_t a, std::size_t b) { return values[a] > values[b]; });
  for (std::size_t j = 0; j < static_cast<std::size_t>(count) && j + 1 < order.size(); ++j) {
    const double gap = values[order[j]] - values[order[j + 1]];
    ANABATIC_REQUIRE(gap == 0 || gap > errors[order[j]] + errors[order[j + 1]],
                     "[tolerance] router: two values are {} apart, and roundings may take {}; "
                     "draw other data",
                     gap, errors[order[j]] + errors[order[j + 1]]);
  }
  order.resize(static_cast<std::size_t>(count));
  return order;
}

double top_two(Data values) {
  std::nth_element(values.begin(), values.begin() + 1, values.end(), std::greater<>());
  return values[0] + values[1];
}

void require_margin(const spec::RouterForm& form, const OpCall& call, const Scores& scores) {
  if (form.chooses_by_logits()) return;
  Data values = scores.values, errors;
  for (std::size_t e = 0; e < values.size(); ++e) {
    const double error = scores.factors[e] * values[e] + scores.underflow;
    if (form.has_bias) values[e] += call.inputs[form.bias()].data[e];
    errors.push_back(error + 2 * kU * std::abs(values[e]));
  }
  if (form.bars_groups()) {
    const auto width = static_cast<std::ptrdiff_t>(values.size()) / form.groups;
    Data groups, group_errors;
    for (auto at = values.begin(); at != values.end(); at += width) {
      const Data group(at, at + width);
      const auto first = errors.begin() + (at - values.begin());
      groups.push_back(form.group_score == spec::GroupScore::kTop2
                           ? top_two(group)
                           : *std::max_element(group.begin(), group.end()));
      group_errors.push_back(2 * *std::max_element(first, first + width) +
                             2 * kU * std::abs(groups.back()));
    }
    const auto best = best_of(groups, group_errors, form.group_top_k);
    for (std::size_t e = 0; e < values.size(); ++e)
      if (std::find(best.begin(), best.end(), e / static_cast<std::size_t>(width)) == best.end())
        values[e] = form.barred == spec::BarredExperts::kZero ? 0 : -HUGE_VAL;
  }
  best_of(values, errors, form.top_k);
}

}  // namespace

std::vector<Bound> router_bounds(const OpCall& call, std::span<const Values> wants) {
  const spec::RouterForm form = spec::router_of(call.attributes);
  const Values& logits = call.inputs[0];
  const Values* documents =
      call.inputs.size() > form.documents() ? &call.inputs[form.documents()] : nullptr;
  const std::size_t width = columns(logits), top_k = columns(wants[0]);
  std::vector<Bound> bounds(5);
  bounds[1].errors.assign(wants[1].data.size(), 0.0);  // experts and counts are exact
  bounds[3].errors.assign(wants[3].data.size(), 0.0);
  bounds[4].errors.assign(wants[4].data.size(), 0.0);
  // Sums of at most 512 terms in one float; what they give is added in double.
  const double sum_error = g(std::min(static_cast<double>(rows(logits)), 512.0) + 2);
  for (std::size_t t = 0; t < rows(logits); ++t) {
    const Scores scores(form, logits, t);
    require_margin(form, call, scores);
    const double worst = *std::max_element(scores.factors.begin(), scores.factors.end());
    // Probabilities of sigmoids are quotients by the sum of all.
    const bool is_quotient = form.score == spec::RouterScore::kSigmoid;
    const double of_sum =
        is_quotient ? worst + g(row_roundings(static_cast<double>(width)) + 2) : 0.0;
    const double total =
        is_quotient ? std::accumulate(scores.values.begin(), scores.values.end(), 0.0) : 1.0;
    for (std::size_t e = 0; e < width; ++e) {
      const double p = wants[2].data[t * width + e];
      const double error = (scores.factors[e] + of_sum) * p + scores.underflow / total;
      bounds[2].errors.push_back(error);
      if (documents == nullptr || documents->data[t] >= 0)
        bounds[4].errors[e] += error + sum_error * p;
    }
    for (std::size_t j = 0; j < top_k; ++j)  // a quotient of two sums at most
      bounds[0].errors.push_back((2 * worst + g(static_cast<double>(top_k) + 4)) *
                                 std::abs(wants[0].data[t * top_k + j]));
  }
  return bounds;
}

// Every difference taken as a sum: d = (scale · dw - Σ w·dw) / D + dprobabilities, and then
// p · (d - Σ p·d), or s · (1 - s) · d.
std::vector<Bound> router_gradient_bounds(const OpCall& call) {
  const spec::RouterForm form = spec::router_of(call.attributes);
  const bool is_sigmoid = form.score == spec::RouterScore::kSigmoid;
  const Values &first = call.inputs[0], &experts = call.inputs[1], &w = call.inputs[2],
               &dw = call.inputs[3];
  const std::size_t width = columns(first), top_k = columns(experts);
  Bound bound;
  for (std::size_t t = 0; t < rows(first); ++t) {
    Data s(first.data.begin() + static_cast<std::ptrdiff_t>(t * width),
           first.data.begin() + static_cast<std::ptrdiff_t>((t + 1) * width)),
        d(width, 0.0);
    double of_scores = 0;
    for (std::size_t i = 0; is_sigmoid && i < width; ++i) {
      of_scores = std::max(of_scores, 4 * sigmoid_roundings(s[i]));
      s[i] = sigmoid(s[i]);
    }
    const double c = g(static_cast<double>(width + 3 * top_k) + kFunction + of_scores);
    const bool counts = call.inputs.size() < 6 || call.inputs[5].data[t] >= 0;
    if (counts && call.inputs.size() > 4) {
      const Values& more = call.inputs[4];
      double inner = 0;
      for (std::size_t i = 0; i < width; ++i) {
        d[i] = std::abs(more.data[more.type.ndim() == 2 ? t * width + i : i]);
        inner += s[i] * d[i];
      }
      const double total = std::accumulate(s.begin(), s.end(), 0.0);
      for (std::size_t i = 0; is_sigmoid && i < width; ++i) d[i] = (d[i] + inner / total) / total;
    }
    double sum = 0, mean = 0;
    for (std::size_t j = t * top_k; j < (t + 1) * top_k; ++j) {
      if (w.data[j] != 0) sum += s[static_cast<std::size_t>(experts.data[j])];
      mean += std::abs(w.data[j] * dw.data[j]);
    }
    const double divisor = form.normalizes ? std::max(sum + form.epsilon, form.floor) : 1.0;
    for (std::size_t j = t * top_k; j < (t + 1) * top_k; ++j)
      if (w.data[j] != 0)
        d[static_cast<std::size_t>(experts.data[j])] +=
            (form.scale * std::abs(dw.data[j]) + (form.normalizes ? mean : 0)) / divisor;
    double inner = 0;
    for (std::size_t i = 0; !is_sigmoid && i < width; ++i) inner += s[i] * d[i];
    for (std::size_t i = 0; i < width; ++i) {
      const double slope = is_sigmoid ? sigmoid(-first.data[t * width + i]) : 1.0;
      bound.errors.push_back(c * s[i] * slope * (d[i] + inner) +
                             (is_sigmoid ? kUnderflow * d[i] : 0.0));
    }
  }
  return {bound};
}

// dgate: a sum over a row, and two sigmoids. x: what it multiplies.
std::vector<Bound> gate_rows_bounds(const OpCall& call) {
  const Values &x = call.inputs[0], &gate = call.inputs[1];
  const std::size_t width = columns(x);
  const bool backward = call.op == "gate_rows_gradient";
  std::vector<Bound> bounds(backward ? 2 : 1);
  for (std::size_t t = 0; t < rows(x); ++t) {
    const double share = sigmoid(gate.data[t]), tail = sigmoid(-gate.data[t]);
    double sum = 0;
    for (std::size_t i = t * width; i < (t + 1) * width; ++i) {
      const double value = std::abs(backward ? call.inputs[2].data[i] : x.data[i]);
      bounds[0].errors.push_back((g(sigmoid_roundings(gate.data[t])) * share + kUnderflow) * value);
      sum += value * std::abs(x.data[i]);
    }
    if (backward)
      bounds[1].errors.push_back(
          (g(2 * sigmoid_roundings(gate.data[t]) + row_roundings(static_cast<double>(width))) *
               share * tail +
           kUnderflow) *
          sum);
  }
  return bounds;
}

}  // namespace anabatic::testing
