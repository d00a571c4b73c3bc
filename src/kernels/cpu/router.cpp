// SPDX-License-Identifier: Apache-2.0
#include <algorithm>

#include "base/rounding.h"
#include "kernels/cpu/log_sum_exp.h"
#include "kernels/cpu/vector_rows.h"

namespace anabatic::kernels::cpu::ANABATIC_ISA {
namespace {

// The expert with the largest logit that is not among experts[0, j); ties go to the lower one.
// Always a valid expert, NaN or not.
std::int32_t next_expert(const float* logits, std::int64_t num_experts, const std::int32_t* experts,
                         std::int64_t j) {
  std::int32_t best = -1;
  for (std::int32_t e = 0; e < num_experts; ++e) {
    if (best >= 0 && !(logits[e] > logits[best])) continue;
    if (std::find(experts, experts + j, e) == experts + j) best = e;
  }
  return best;
}

// The chosen experts of one row and their weights.
void choose(const float* logits, const float* probabilities, std::int64_t num_experts,
            std::int64_t top_k, bool normalize, std::int32_t* experts, float* weights) {
  float sum = 0;
  for (std::int64_t j = 0; j < top_k; ++j) {
    experts[j] = next_expert(logits, num_experts, experts, j);
    weights[j] = probabilities[experts[j]];
    sum += weights[j];
  }
  for (std::int64_t j = 0; normalize && j < top_k; ++j) weights[j] /= sum;
}

}  // namespace

// Workspace: counts[E] and probability sums[E] of each block of rows, merged in ascending order and
// in double. Rows of no document (padding) are routed, but counted nowhere.
void router(const Arguments& args) {
  const float* logits = args.inputs[0].as<const float>();
  float* weights = args.outputs[0].as<float>();
  std::int32_t* experts = args.outputs[1].as<std::int32_t>();
  float* probabilities = args.outputs[2].as<float>();
  const std::int64_t num_rows = rows(args.inputs[0]), num_experts = columns(args.inputs[0]),
                     top_k = columns(args.outputs[1]), num_blocks = ceil_div(num_rows, kRowBlock);
  const bool normalize = spec::get_bool(*args.attributes, "normalize");
  const auto* documents =
      args.inputs.size() > 1 ? args.inputs[1].as<const std::int32_t>() : nullptr;
  float* partials = reinterpret_cast<float*>(args.workspace);

  args.launch.team->for_tasks(num_blocks, [&](std::int64_t block) {
    float *counts = partials + block * 2 * num_experts, *sums = counts + num_experts;
    std::fill(counts, sums + num_experts, 0.0f);
    const std::int64_t end = std::min(num_rows, (block + 1) * kRowBlock);
    for (std::int64_t t = block * kRowBlock; t < end; ++t) {
      const float* x = logits + t * num_experts;
      float* p = probabilities + t * num_experts;
      const auto lse = static_cast<float>(log_sum_exp(x, num_experts));
      for_lanes(0, num_experts, [&](std::int64_t e, int n) {
        const Floats probability = exp(load(x + e, n) - lse);
        store(p + e, probability, n);
      });
      choose(x, p, num_experts, top_k, normalize, experts + t * top_k, weights + t * top_k);
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
      count += partials[block * 2 * num_experts + e];
      sum += partials[(block * 2 + 1) * num_experts + e];
    }
    args.outputs[3].as<float>()[e] = static_cast<float>(count);
    args.outputs[4].as<float>()[e] = static_cast<float>(sum);
  }
}

// With S the sum of the chosen probabilities: dL/dp of a chosen expert is dw when weights are the
// probabilities, and (dw − Σ w·dw) / S when they are divided by S. dprobabilities reach every p of
// a document, row by row [T, E], or all rows alike [E]. Then dlogits = p · (dL/dp − Σ p · dL/dp).
// The output row holds dL/dp until then.
void router_gradient(const Arguments& args) {
  const std::int64_t num_experts = columns(args.inputs[0]), top_k = columns(args.inputs[1]);
  const bool normalize = spec::get_bool(*args.attributes, "normalize");
  const float* dprobabilities = args.inputs.size() > 4 ? args.inputs[4].as<const float>() : nullptr;
  const std::int64_t stride =
      dprobabilities != nullptr && args.inputs[4].type->ndim() == 2 ? num_experts : 0;
  const auto* documents =
      args.inputs.size() > 5 ? args.inputs[5].as<const std::int32_t>() : nullptr;
  const auto run = [&](std::int64_t begin, std::int64_t end) {
    for (std::int64_t t = begin; t < end; ++t) {
      const float* p = args.inputs[0].as<const float>() + t * num_experts;
      const std::int32_t* experts = args.inputs[1].as<const std::int32_t>() + t * top_k;
      const float* weights = args.inputs[2].as<const float>() + t * top_k;
      const float* dweights = args.inputs[3].as<const float>() + t * top_k;
      float* out = args.outputs[0].as<float>() + t * num_experts;
      float sum = normalize ? 0.0f : 1.0f, mean = 0;
      for (std::int64_t j = 0; normalize && j < top_k; ++j) {
        sum += p[experts[j]];
        mean += weights[j] * dweights[j];
      }
      const bool has_more =
          dprobabilities != nullptr && (documents == nullptr || documents[t] >= 0);
      const float* more = dprobabilities + t * stride;
      for_lanes(0, num_experts, [&](std::int64_t e, int n) {
        store(out + e, has_more ? load(more + e, n) : Floats{}, n);
      });
      for (std::int64_t j = 0; j < top_k; ++j) out[experts[j]] += (dweights[j] - mean) / sum;
      Floats inner_lanes{};
      for_lanes(0, num_experts, [&](std::int64_t e, int n) {
        inner_lanes = madd(load(p + e, n), load(out + e, n), inner_lanes);
      });
      const float inner = sum_lanes(inner_lanes);
      for_lanes(0, num_experts, [&](std::int64_t e, int n) {
        store(out + e, load(p + e, n) * (load(out + e, n) - inner), n);
      });
    }
  };
  args.launch.team->for_range(rows(args.inputs[0]), row_grain(num_experts), run);
}

}  // namespace anabatic::kernels::cpu::ANABATIC_ISA
