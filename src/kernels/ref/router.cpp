// SPDX-License-Identifier: Apache-2.0
#include "spec/router.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <span>
#include <utility>
#include <vector>

#include "kernels/ref/access.h"
#include "kernels/ref/rows.h"

namespace anabatic::kernels::ref {
namespace {

using Row = std::vector<double>;

constexpr double kInfinity = std::numeric_limits<double>::infinity();

double sigmoid(double x) {
  const double tail = std::exp(-std::abs(x));
  return (x < 0 ? tail : 1.0) / (1.0 + tail);
}

// Scores of row t of the logits.
void score(const spec::RouterForm& form, const TensorView& logits, std::int64_t t, Row& scores) {
  const std::int64_t num_experts = columns(logits);
  scores.resize(static_cast<std::size_t>(num_experts));
  const double lse = form.score == spec::RouterScore::kSoftmax
                         ? log_sum_exp(logits, t * num_experts, num_experts)
                         : 0.0;
  for (std::size_t e = 0; e < scores.size(); ++e) {
    const double logit = load(logits, t * num_experts + static_cast<std::int64_t>(e));
    scores[e] = form.score == spec::RouterScore::kSoftmax ? std::exp(logit - lse) : sigmoid(logit);
  }
}

double sum_of(const Row& values) {
  double sum = 0;
  for (const double value : values) sum += value;
  return sum;
}

// The index of the largest value that is not among taken[0, j); ties go to the lower one. Always a
// valid index, NaN or not.
std::size_t next_largest(const Row& values, const std::vector<std::size_t>& taken, std::size_t j) {
  std::size_t best = values.size();
  for (std::size_t i = 0; i < values.size(); ++i) {
    const auto end = taken.begin() + static_cast<std::ptrdiff_t>(j);
    if (std::find(taken.begin(), end, i) != end) continue;
    if (best == values.size() || values[i] > values[best]) best = i;
  }
  return best;
}

void take_largest(const Row& values, std::int64_t count, std::vector<std::size_t>& taken) {
  taken.resize(static_cast<std::size_t>(count));
  for (std::size_t j = 0; j < taken.size(); ++j) taken[j] = next_largest(values, taken, j);
}

double group_value(const spec::RouterForm& form, const double* values, std::size_t count) {
  double largest = -kInfinity, second = -kInfinity;
  for (const double value : std::span(values, count)) {
    if (value > largest)
      second = std::exchange(largest, value);
    else if (value > second)
      second = value;
  }
  return form.group_score == spec::GroupScore::kTop2 ? largest + second : largest;
}

// One row at a time: scores, and what experts are compared by.
struct Choice {
  Row scores, values, groups;
  std::vector<std::size_t> experts, best_groups;

  // Experts outside the best groups.
  void bar(const spec::RouterForm& form) {
    const std::size_t width = values.size() / static_cast<std::size_t>(form.groups);
    groups.clear();
    for (std::size_t begin = 0; begin < values.size(); begin += width)
      groups.push_back(group_value(form, values.data() + begin, width));
    take_largest(groups, form.group_top_k, best_groups);
    const bool is_zero = form.barred == spec::BarredExperts::kZero;
    for (std::size_t e = 0; e < values.size(); ++e) {
      if (std::find(best_groups.begin(), best_groups.end(), e / width) != best_groups.end())
        continue;
      values[e] = is_zero ? 0.0 : -kInfinity;
      if (is_zero) scores[e] = 0.0;
    }
  }

  void choose(const spec::RouterForm& form, const Arguments& args, std::int64_t t) {
    const TensorView& logits = args.inputs[0];
    values.resize(scores.size());
    for (std::size_t e = 0; e < values.size(); ++e) {
      const auto at = static_cast<std::int64_t>(e);
      values[e] = form.chooses_by_logits() ? load(logits, t * columns(logits) + at) : scores[e];
      if (form.has_bias) values[e] += load(args.inputs[form.bias()], at);
    }
    if (form.bars_groups()) bar(form);
    take_largest(values, form.top_k, experts);
  }
};

// What chosen scores are divided by.
double divisor(const spec::RouterForm& form, double sum) {
  return form.normalizes ? std::max(sum + form.epsilon, form.floor) : 1.0;
}

}  // namespace

void router(const Arguments& args) {
  const spec::RouterForm form = spec::router_of(*args.attributes);
  const TensorView &logits = args.inputs[0], &weights = args.outputs[0], &experts = args.outputs[1],
                   &probabilities = args.outputs[2];
  const TensorView* documents =
      args.inputs.size() > form.documents() ? &args.inputs[form.documents()] : nullptr;
  const std::int64_t num_experts = columns(logits);
  // Kept from call to call, so that a step allocates nothing.
  thread_local Row counts, sums;
  thread_local Choice row;
  counts.assign(static_cast<std::size_t>(num_experts), 0.0);
  sums = counts;
  for (std::int64_t t = 0; t < rows(logits); ++t) {
    score(form, logits, t, row.scores);
    const bool is_counted = documents == nullptr || load_index(*documents, t) >= 0;
    const double total = form.score == spec::RouterScore::kSigmoid ? sum_of(row.scores) : 1.0;
    for (std::size_t e = 0; e < row.scores.size(); ++e) {
      const double probability = row.scores[e] / total;
      store(probabilities, t * num_experts + static_cast<std::int64_t>(e), probability);
      if (is_counted) sums[e] += probability;
    }
    row.choose(form, args, t);
    double sum = 0;
    for (const std::size_t e : row.experts) sum += row.scores[e];
    for (std::size_t j = 0; j < row.experts.size(); ++j) {
      const std::size_t e = row.experts[j];
      const std::int64_t at = t * form.top_k + static_cast<std::int64_t>(j);
      store_index(experts, at, static_cast<std::int64_t>(e));
      store(weights, at, row.scores[e] / divisor(form, sum) * form.scale);
      if (is_counted) counts[e] += 1;
    }
  }
  for (std::size_t e = 0; e < counts.size(); ++e) {
    store(args.outputs[3], static_cast<std::int64_t>(e), counts[e]);
    store(args.outputs[4], static_cast<std::int64_t>(e), sums[e]);
  }
}

// A weight is scale · s / D, with D = 1, or max(S + epsilon, floor) of the chosen scores' sum S.
// So dL/ds of a chosen expert is (scale · dw − Σ w·dw) / D, without the sum where D does not depend
// on S. A chosen expert of weight 0 is barred, or has score 0, and gets nothing.
//
// dprobabilities reach every s of a document, row by row, or all rows alike. Of a softmax,
// dlogits = s · (dL/ds − Σ s · dL/ds). Of sigmoids, probabilities are s / Σ s and
// dlogits = s · (1 − s) · dL/ds.
void router_gradient(const Arguments& args) {
  const spec::RouterForm form = spec::router_of(*args.attributes);
  const bool is_sigmoid = form.score == spec::RouterScore::kSigmoid;
  const TensorView &first = args.inputs[0], &experts = args.inputs[1], &weights = args.inputs[2],
                   &dweights = args.inputs[3];
  const TensorView* dprobabilities = args.inputs.size() > 4 ? &args.inputs[4] : nullptr;
  const TensorView* documents = args.inputs.size() > 5 ? &args.inputs[5] : nullptr;
  const std::int64_t num_experts = columns(first), top_k = columns(experts);
  thread_local Row scores, dscores;  // as above
  scores.resize(static_cast<std::size_t>(num_experts));
  dscores.resize(scores.size());
  for (std::int64_t t = 0; t < rows(first); ++t) {
    if (is_sigmoid) score(form, first, t, scores);
    for (std::int64_t e = 0; !is_sigmoid && e < num_experts; ++e)
      scores[static_cast<std::size_t>(e)] = load(first, t * num_experts + e);

    std::fill(dscores.begin(), dscores.end(), 0.0);
    if (dprobabilities != nullptr && (documents == nullptr || load_index(*documents, t) >= 0)) {
      double inner = 0;
      const std::int64_t begin = dprobabilities->type->ndim() == 2 ? t * num_experts : 0;
      for (std::size_t e = 0; e < scores.size(); ++e) {
        dscores[e] = load(*dprobabilities, begin + static_cast<std::int64_t>(e));
        inner += scores[e] * dscores[e];
      }
      const double total = sum_of(scores);
      for (std::size_t e = 0; is_sigmoid && e < scores.size(); ++e)
        dscores[e] = (dscores[e] - inner / total) / total;
    }

    double sum = 0, mean = 0;
    for (std::int64_t j = t * top_k; j < (t + 1) * top_k; ++j) {
      sum += load(weights, j) == 0 ? 0 : scores[static_cast<std::size_t>(load_index(experts, j))];
      mean += load(weights, j) * load(dweights, j);
    }
    if (!form.normalizes || sum + form.epsilon < form.floor) mean = 0;
    for (std::int64_t j = t * top_k; j < (t + 1) * top_k; ++j)
      if (load(weights, j) != 0)
        dscores[static_cast<std::size_t>(load_index(experts, j))] +=
            (form.scale * load(dweights, j) - mean) / divisor(form, sum);

    double inner = 0;
    for (std::size_t e = 0; !is_sigmoid && e < scores.size(); ++e) inner += scores[e] * dscores[e];
    for (std::size_t e = 0; e < scores.size(); ++e) {
      const std::int64_t at = t * num_experts + static_cast<std::int64_t>(e);
      const double slope = is_sigmoid ? sigmoid(-load(first, at)) : 1.0;
      store(args.outputs[0], at, scores[e] * slope * (dscores[e] - inner));
    }
  }
}

}  // namespace anabatic::kernels::ref
