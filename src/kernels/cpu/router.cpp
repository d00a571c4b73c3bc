// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <utility>

#include "base/rounding.h"
#include "kernels/cpu/activation_math.h"
#include "kernels/cpu/log_sum_exp.h"
#include "kernels/cpu/router_workspace.h"
#include "kernels/cpu/vector_rows.h"

namespace anabatic::kernels::cpu::ANABATIC_ISA {
namespace {

ANABATIC_INLINE Floats sigmoid(Floats x) { return times_sigmoid(x, decay(x), broadcast(1.0f)); }

float sum_of(const float* values, std::int64_t count) {
  return static_cast<float>(sum_of_row(
      count, [&](std::int64_t i, int n, Floats before) { return before + load(values + i, n); }));
}

// The index of the largest value that is not among taken[0, j); ties go to the lower one. Always a
// valid index, NaN or not.
std::int32_t next_largest(const float* values, std::int64_t count, const std::int32_t* taken,
                          std::int64_t j) {
  std::int32_t best = -1;
  for (std::int32_t i = 0; i < count; ++i) {
    if (best >= 0 && !(values[i] > values[best])) continue;
    if (std::find(taken, taken + j, i) == taken + j) best = i;
  }
  return best;
}

// The `top_k` first indices of next_largest in turn, by vectors where values are numbers.
void take_largest(const float* values, std::int64_t count, std::int64_t top_k,
                  std::int32_t* taken) {
  constexpr std::int64_t kMost = 1024;
  std::int64_t j = 0;
  if (count >= kLanes && count <= kMost) {
    alignas(64) float left[kMost];  // those that are not taken; -infinity in place of the others
    Floats is_nan{};                // 1 where one is
    for_lanes(0, count, [&](std::int64_t i, int n) {
      const Floats x = load(values + i, n);
      is_nan = x != x ? broadcast(1.0f) : is_nan;
      store(left + i, x, n);
    });
    const std::int64_t whole = round_up(count, kLanes);
    std::fill(left + count, left + whole, -kInfinity);
    Floats before_end;  // by lane: elements of `left` from there on; larger at a lower index
    for (int e = 0; e < kLanes; ++e) before_end[e] = static_cast<float>(whole - e);
    const bool are_numbers = max_lanes(is_nan) == 0.0f;
    for (; j < top_k && are_numbers; ++j) {
      Floats largest = broadcast(-kInfinity);
      for (std::int64_t i = 0; i < whole; i += kLanes) largest = max(largest, load(left + i));
      const float value = max_lanes(largest);
      if (value == -kInfinity) break;  // what is taken has it too
      Floats place{}, from = before_end;
      for (std::int64_t i = 0; i < whole; i += kLanes, from -= static_cast<float>(kLanes))
        place = max(place, load(left + i) == value ? from : Floats{});
      taken[j] = static_cast<std::int32_t>(whole) - static_cast<std::int32_t>(max_lanes(place));
      left[taken[j]] = -kInfinity;
    }
  }
  for (; j < top_k; ++j) taken[j] = next_largest(values, count, taken, j);
}

// What chosen scores are divided by.
float divisor(const spec::RouterForm& form, float sum) {
  return form.normalizes
             ? std::max(sum + static_cast<float>(form.epsilon), static_cast<float>(form.floor))
             : 1.0f;
}

// The chosen experts of one row and their weights.
void choose(const spec::RouterForm& form, const float* values, const float* scores,
            std::int64_t num_experts, std::int32_t* experts, float* weights) {
  float sum = 0;
  take_largest(values, num_experts, form.top_k, experts);
  for (std::int64_t j = 0; j < form.top_k; ++j) {
    weights[j] = scores[experts[j]];
    sum += weights[j];
  }
  const float by = divisor(form, sum), scale = static_cast<float>(form.scale);
  for (std::int64_t j = 0; j < form.top_k; ++j) weights[j] = weights[j] / by * scale;
}

// Arrays [E] of one row where experts are not compared by logits, or scores are no probabilities.
struct Scratch {
  float *scores, *values, *groups;
  std::int32_t* best_groups;

  Scratch(float* at, std::int64_t num_experts)
      : scores(at),
        values(at + num_experts),
        groups(at + 2 * num_experts),
        best_groups(reinterpret_cast<std::int32_t*>(at + 3 * num_experts)) {}
};

float group_value(const spec::RouterForm& form, const float* values, std::int64_t count) {
  float largest = -kInfinity, second = -kInfinity;
  for (std::int64_t i = 0; i < count; ++i) {
    if (values[i] > largest)
      second = std::exchange(largest, values[i]);
    else if (values[i] > second)
      second = values[i];
  }
  return form.group_score == spec::GroupScore::kTop2 ? largest + second : largest;
}

// Experts outside the best groups.
void bar_groups(const spec::RouterForm& form, const Scratch& row, std::int64_t num_experts) {
  const std::int64_t width = num_experts / form.groups;
  for (std::int64_t g = 0; g < form.groups; ++g)
    row.groups[g] = group_value(form, row.values + g * width, width);
  for (std::int64_t j = 0; j < form.group_top_k; ++j)
    row.best_groups[j] = next_largest(row.groups, form.groups, row.best_groups, j);
  const bool is_zero = form.barred == spec::BarredExperts::kZero;
  for (std::int64_t g = 0; g < form.groups; ++g) {
    const std::int32_t* end = row.best_groups + form.group_top_k;
    if (std::find<const std::int32_t*>(row.best_groups, end, g) != end) continue;
    std::fill_n(row.values + g * width, width, is_zero ? 0.0f : -kInfinity);
    if (is_zero) std::fill_n(row.scores + g * width, width, 0.0f);
  }
}

// What experts are compared by, from scores.
void compare_scores(const spec::RouterForm& form, const float* bias, const Scratch& row,
                    std::int64_t num_experts) {
  for_lanes(0, num_experts, [&](std::int64_t e, int n) {
    const Floats score = load(row.scores + e, n);
    store(row.values + e, bias != nullptr ? score + load(bias + e, n) : score, n);
  });
  if (form.bars_groups()) bar_groups(form, row, num_experts);
}

}  // namespace

// Workspace: counts[E] and probability sums[E] of each block of rows, merged in ascending order and
// in double; then its scratch. Rows of no document (padding) are routed, but counted nowhere.
void router(const Arguments& args) {
  const spec::RouterForm form = spec::router_of(*args.attributes);
  const float* logits = args.inputs[0].as<const float>();
  float* weights = args.outputs[0].as<float>();
  std::int32_t* experts = args.outputs[1].as<std::int32_t>();
  float* probabilities = args.outputs[2].as<float>();
  const std::int64_t num_rows = rows(args.inputs[0]), num_experts = columns(args.inputs[0]),
                     top_k = form.top_k, num_blocks = ceil_div(num_rows, kRowBlock),
                     stride = router_block_arrays(form) * num_experts;
  const bool is_sigmoid = form.score == spec::RouterScore::kSigmoid;
  const float* bias = form.has_bias ? args.inputs[form.bias()].as<const float>() : nullptr;
  const auto* documents = args.inputs.size() > form.documents()
                              ? args.inputs[form.documents()].as<const std::int32_t>()
                              : nullptr;
  float* partials = reinterpret_cast<float*>(args.workspace);

  args.launch.team->for_tasks(num_blocks, [&](std::int64_t block) {
    float *counts = partials + block * stride, *sums = counts + num_experts;
    const Scratch row(sums + num_experts, num_experts);
    std::fill(counts, sums + num_experts, 0.0f);
    const std::int64_t end = std::min(num_rows, (block + 1) * kRowBlock);
    for (std::int64_t t = block * kRowBlock; t < end; ++t) {
      const float *x = logits + t * num_experts, *values = x, *scores = row.scores;
      float* p = probabilities + t * num_experts;
      if (is_sigmoid) {
        for_lanes(0, num_experts, [&](std::int64_t e, int n) {
          store(row.scores + e, sigmoid(load(x + e, n)), n);
        });
        const float sum = sum_of(row.scores, num_experts);
        for_lanes(0, num_experts,
                  [&](std::int64_t e, int n) { store(p + e, load(row.scores + e, n) / sum, n); });
      } else {
        const auto lse = static_cast<float>(log_sum_exp(x, num_experts));
        for_lanes(0, num_experts, [&](std::int64_t e, int n) {
          const Floats probability = exp(load(x + e, n) - lse);
          store(p + e, probability, n);
        });
        scores = p;
      }
      if (!form.chooses_by_logits()) {
        if (!is_sigmoid) std::copy_n(p, num_experts, row.scores);
        compare_scores(form, bias, row, num_experts);
        values = row.values;
        scores = row.scores;
      }
      choose(form, values, scores, num_experts, experts + t * top_k, weights + t * top_k);
      if (documents != nullptr && documents[t] < 0) continue;
      for_lanes(0, num_experts, [&](std::int64_t e, int n) {
        store(sums + e, load(sums + e, n) + load(p + e, n), n);
      });
      for (std::int64_t j = 0; j < top_k; ++j) counts[experts[t * top_k + j]] += 1.0f;
    }
  });
  for (std::int64_t e = 0; e < num_experts; ++e) {
    double count = 0, sum = 0;
    for (std::int64_t block = 0; block < num_blocks; ++block) {
      count += partials[block * stride + e];
      sum += partials[block * stride + num_experts + e];
    }
    args.outputs[3].as<float>()[e] = static_cast<float>(count);
    args.outputs[4].as<float>()[e] = static_cast<float>(sum);
  }
}

namespace {

// dL/ds of the chosen experts, added into `dscores`. A weight is scale · s / D, with D = 1, or
// max(S + epsilon, floor) of the chosen scores' sum S. So dL/ds is (scale · dw − Σ w·dw) / D,
// without the sum where D does not depend on S. A barred expert weighs 0 and gets nothing.
template <class ScoreOf>
ANABATIC_INLINE void add_chosen(const spec::RouterForm& form, std::int64_t top_k,
                                const std::int32_t* experts, const float* weights,
                                const float* dweights, ScoreOf&& score_of, float* dscores) {
  float sum = 0, mean = 0;
  const auto is_barred = [&](std::int64_t j, float score) { return weights[j] == 0 && score > 0; };
  for (std::int64_t j = 0; form.normalizes && j < top_k; ++j) {
    const float score = score_of(experts[j]);
    if (!is_barred(j, score)) sum += score;
    mean += weights[j] * dweights[j];
  }
  if (sum + static_cast<float>(form.epsilon) < static_cast<float>(form.floor)) mean = 0;
  const float by = divisor(form, sum), scale = static_cast<float>(form.scale);
  for (std::int64_t j = 0; j < top_k; ++j)
    if (!is_barred(j, score_of(experts[j])))
      dscores[experts[j]] += (scale * dweights[j] - mean) / by;
}

// dlogits = p · (dL/dp − Σ p · dL/dp). `out` holds dL/dp until then.
void softmax_gradient(const float* p, std::int64_t num_experts, float* out) {
  Floats inner_lanes{};
  for_lanes(0, num_experts, [&](std::int64_t e, int n) {
    inner_lanes = madd(load(p + e, n), load(out + e, n), inner_lanes);
  });
  const float inner = sum_lanes(inner_lanes);
  for_lanes(0, num_experts, [&](std::int64_t e, int n) {
    store(out + e, load(p + e, n) * (load(out + e, n) - inner), n);
  });
}

// dL/ds of probabilities s / Σ s whose gradient is dp: (dp − Σ p · dp) / Σ s.
void normalized_gradient(const float* logits, const float* dp, std::int64_t num_experts,
                         float* out) {
  for_lanes(0, num_experts,
            [&](std::int64_t e, int n) { store(out + e, sigmoid(load(logits + e, n)), n); });
  const float total = sum_of(out, num_experts);
  const auto inner =
      static_cast<float>(sum_of_row(num_experts, [&](std::int64_t e, int n, Floats before) {
        return madd(load(out + e, n), load(dp + e, n), before);
      }));
  for_lanes(0, num_experts, [&](std::int64_t e, int n) {
    store(out + e, (load(dp + e, n) - inner / total) / total, n);
  });
}

}  // namespace

// dprobabilities reach every score of a document, row by row [T, E], or all rows alike [E].
void router_gradient(const Arguments& args) {
  const spec::RouterForm form = spec::router_of(*args.attributes);
  const bool is_sigmoid = form.score == spec::RouterScore::kSigmoid;
  const std::int64_t num_experts = columns(args.inputs[0]), top_k = columns(args.inputs[1]);
  const float* dprobabilities = args.inputs.size() > 4 ? args.inputs[4].as<const float>() : nullptr;
  const std::int64_t stride =
      dprobabilities != nullptr && args.inputs[4].type->ndim() == 2 ? num_experts : 0;
  const auto* documents =
      args.inputs.size() > 5 ? args.inputs[5].as<const std::int32_t>() : nullptr;
  const auto run = [&](std::int64_t begin, std::int64_t end) {
    for (std::int64_t t = begin; t < end; ++t) {
      const float* x = args.inputs[0].as<const float>() + t * num_experts;
      const std::int32_t* experts = args.inputs[1].as<const std::int32_t>() + t * top_k;
      const float* weights = args.inputs[2].as<const float>() + t * top_k;
      const float* dweights = args.inputs[3].as<const float>() + t * top_k;
      float* out = args.outputs[0].as<float>() + t * num_experts;
      const bool has_more =
          dprobabilities != nullptr && (documents == nullptr || documents[t] >= 0);
      if (!has_more)
        std::fill_n(out, num_experts, 0.0f);
      else if (is_sigmoid)
        normalized_gradient(x, dprobabilities + t * stride, num_experts, out);
      else
        std::copy_n(dprobabilities + t * stride, num_experts, out);
      const auto score_of = [&](std::int32_t e) {
        return is_sigmoid ? sigmoid(broadcast(x[e]))[0] : x[e];
      };
      add_chosen(form, top_k, experts, weights, dweights, score_of, out);
      if (!is_sigmoid) {
        softmax_gradient(x, num_experts, out);
        continue;
      }
      for_lanes(0, num_experts, [&](std::int64_t e, int n) {
        const Floats logit = load(x + e, n);
        const Decay d = decay(logit);
        store(out + e, times_tail(logit, d, times_sigmoid(logit, d, load(out + e, n))), n);
      });
    }
  };
  args.launch.team->for_range(rows(args.inputs[0]), row_grain(num_experts), run);
}

}  // namespace anabatic::kernels::cpu::ANABATIC_ISA
