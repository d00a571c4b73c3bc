// SPDX-License-Identifier: Apache-2.0
#include <cmath>

#include "kernels/ref/access.h"
#include "kernels/ref/rows.h"

namespace anabatic::kernels::ref {
namespace {

// The j-th of row t's experts: the largest logit that is not among the first j; ties go to the
// lower expert. Always a valid expert, NaN or not.
std::int64_t next_expert(const TensorView& logits, const TensorView& experts, std::int64_t t,
                         std::int64_t j) {
  const std::int64_t num_experts = columns(logits), top_k = columns(experts);
  std::int64_t best = -1;
  for (std::int64_t e = 0; e < num_experts; ++e) {
    bool taken = false;
    for (std::int64_t i = 0; i < j; ++i) taken |= load_index(experts, t * top_k + i) == e;
    if (taken) continue;
    if (best < 0 || load(logits, t * num_experts + e) > load(logits, t * num_experts + best))
      best = e;
  }
  return best;
}

}  // namespace

void router(const Arguments& args) {
  const TensorView &logits = args.inputs[0], &weights = args.outputs[0], &experts = args.outputs[1];
  const TensorView* documents = args.inputs.size() > 1 ? &args.inputs[1] : nullptr;
  const std::int64_t num_experts = columns(logits), top_k = columns(experts);
  const bool normalize = spec::get_bool(*args.attributes, "normalize");
  for (std::int64_t t = 0; t < rows(logits); ++t) {
    const double lse = log_sum_exp(logits, t * num_experts, num_experts);
    const auto probability = [&](std::int64_t e) {
      return std::exp(load(logits, t * num_experts + e) - lse);
    };
    for (std::int64_t e = 0; e < num_experts; ++e)
      store(args.outputs[2], t * num_experts + e, probability(e));
    double sum = 0;
    for (std::int64_t j = 0; j < top_k; ++j) {
      store_index(experts, t * top_k + j, next_expert(logits, experts, t, j));
      sum += probability(load_index(experts, t * top_k + j));
    }
    for (std::int64_t j = 0; j < top_k; ++j)
      store(weights, t * top_k + j,
            probability(load_index(experts, t * top_k + j)) / (normalize ? sum : 1.0));
  }
  for (std::int64_t e = 0; e < num_experts; ++e) {
    double count = 0, sum = 0;
    for (std::int64_t t = 0; t < rows(logits); ++t) {
      if (documents != nullptr && load_index(*documents, t) < 0) continue;
      for (std::int64_t j = 0; j < top_k; ++j)
        count += load_index(experts, t * top_k + j) == e ? 1 : 0;
      sum += std::exp(load(logits, t * num_experts + e) -
                      log_sum_exp(logits, t * num_experts, num_experts));
    }
    store(args.outputs[3], e, count);
    store(args.outputs[4], e, sum);
  }
}

// With S the sum of the chosen probabilities: dL/dp of a chosen expert is dw when weights are the
// probabilities, and (dw − Σ w·dw) / S when they are divided by S. dprobabilities reach every p of
// a document, row by row, or all rows alike. Then dlogits = p · (dL/dp − Σ p · dL/dp).
void router_gradient(const Arguments& args) {
  const TensorView &probabilities = args.inputs[0], &experts = args.inputs[1],
                   &weights = args.inputs[2], &dweights = args.inputs[3];
  const TensorView* dprobabilities = args.inputs.size() > 4 ? &args.inputs[4] : nullptr;
  const TensorView* documents = args.inputs.size() > 5 ? &args.inputs[5] : nullptr;
  const std::int64_t num_experts = columns(probabilities), top_k = columns(experts);
  const bool normalize = spec::get_bool(*args.attributes, "normalize");
  for (std::int64_t t = 0; t < rows(probabilities); ++t) {
    double sum = 1.0, mean = 0.0;
    if (normalize) {
      sum = 0.0;
      for (std::int64_t j = 0; j < top_k; ++j) {
        sum += load(probabilities, t * num_experts + load_index(experts, t * top_k + j));
        mean += load(weights, t * top_k + j) * load(dweights, t * top_k + j);
      }
    }
    const auto dprobability = [&](std::int64_t e) {
      double gradient = 0.0;
      if (dprobabilities != nullptr && (documents == nullptr || load_index(*documents, t) >= 0))
        gradient =
            load(*dprobabilities, (dprobabilities->type->ndim() == 2 ? t * num_experts : 0) + e);
      for (std::int64_t j = 0; j < top_k; ++j)
        if (load_index(experts, t * top_k + j) == e)
          gradient += (load(dweights, t * top_k + j) - mean) / sum;
      return gradient;
    };
    double inner = 0;
    for (std::int64_t e = 0; e < num_experts; ++e)
      inner += load(probabilities, t * num_experts + e) * dprobability(e);
    for (std::int64_t e = 0; e < num_experts; ++e)
      store(args.outputs[0], t * num_experts + e,
            load(probabilities, t * num_experts + e) * (dprobability(e) - inner));
  }
}

void route_sort(const Arguments& args) {
  const TensorView &experts = args.inputs[0], &row_map = args.outputs[0], &slots = args.outputs[1],
                   &offsets = args.outputs[2];
  const std::int64_t num_experts = spec::get_int(*args.attributes, "num_experts");
  std::int64_t p = 0;
  for (std::int64_t e = 0; e < num_experts; ++e) {
    store_index(offsets, e, p);
    for (std::int64_t i = 0; i < size(experts); ++i) {
      if (load_index(experts, i) != e) continue;
      store_index(row_map, p, i);
      store_index(slots, i, p);
      ++p;
    }
  }
  store_index(offsets, num_experts, p);
  ANABATIC_REQUIRE(p == size(experts), "[route_sort] expected experts in [0, {})", num_experts);
}

void permute(const Arguments& args) {
  const TensorView &x = args.inputs[0], &row_map = args.inputs[1];
  const std::int64_t width = columns(x);
  const std::int64_t top_k = spec::get_int(*args.attributes, "top_k");
  for (std::int64_t p = 0; p < rows(row_map); ++p)
    for (std::int64_t h = 0; h < width; ++h)
      store(args.outputs[0], p * width + h, load(x, load_index(row_map, p) / top_k * width + h));
}

void permute_gradient(const Arguments& args) {
  const TensorView &dy = args.inputs[0], &slots = args.inputs[1];
  const std::int64_t width = columns(dy);
  const std::int64_t top_k = spec::get_int(*args.attributes, "top_k");
  for (std::int64_t t = 0; t < rows(args.outputs[0]); ++t)
    for (std::int64_t h = 0; h < width; ++h) {
      double sum = 0;
      for (std::int64_t j = 0; j < top_k; ++j)
        sum += load(dy, load_index(slots, t * top_k + j) * width + h);
      store(args.outputs[0], t * width + h, sum);
    }
}

void unpermute(const Arguments& args) {
  const TensorView &y = args.inputs[0], &weights = args.inputs[1], &slots = args.inputs[2];
  const std::int64_t width = columns(y), top_k = columns(weights);
  for (std::int64_t t = 0; t < rows(weights); ++t)
    for (std::int64_t h = 0; h < width; ++h) {
      double sum = 0;
      for (std::int64_t j = 0; j < top_k; ++j)
        sum += load(weights, t * top_k + j) * load(y, load_index(slots, t * top_k + j) * width + h);
      store(args.outputs[0], t * width + h, sum);
    }
}

void unpermute_gradient(const Arguments& args) {
  const TensorView &dout = args.inputs[0], &y = args.inputs[1], &weights = args.inputs[2],
                   &slots = args.inputs[3];
  const std::int64_t width = columns(y), top_k = columns(weights);
  for (std::int64_t i = 0; i < size(weights); ++i) {
    const std::int64_t from = i / top_k * width, to = load_index(slots, i) * width;
    double sum = 0;
    for (std::int64_t h = 0; h < width; ++h) {
      sum += load(dout, from + h) * load(y, to + h);
      store(args.outputs[0], to + h, load(weights, i) * load(dout, from + h));
    }
    store(args.outputs[1], i, sum);
  }
}

}  // namespace anabatic::kernels::ref
