// SPDX-License-Identifier: Apache-2.0
#include "train/sampler.h"

#include <algorithm>
#include <cmath>
#include <numeric>

#include "base/error.h"
#include "base/philox.h"

namespace anabatic::train {
namespace {

constexpr std::uint64_t kSamplerStream = 0x73616d706c65;  // "sample"

}  // namespace

Sampler::Sampler(const RunConfig::Generate& options, std::int64_t vocabulary)
    : options_(options),
      order_(static_cast<std::size_t>(vocabulary)),
      weights_(static_cast<std::size_t>(vocabulary)) {}

std::int32_t Sampler::next(std::span<const float> logits, std::int64_t position) {
  ANABATIC_CHECK(logits.size() == order_.size(), "[sampler] expected {} logits, got {}",
                 order_.size(), logits.size());
  for (const float logit : logits)
    ANABATIC_REQUIRE(!std::isnan(logit), "[generate] the model returned NaN logits");
  if (options_.temperature == 0.0)
    return static_cast<std::int32_t>(std::max_element(logits.begin(), logits.end()) -
                                     logits.begin());

  std::iota(order_.begin(), order_.end(), 0);
  std::size_t kept = order_.size();
  if (options_.top_k > 0) kept = std::min(kept, static_cast<std::size_t>(options_.top_k));
  const auto likelier = [&](std::int32_t a, std::int32_t b) {
    const float left = logits[static_cast<std::size_t>(a)],
                right = logits[static_cast<std::size_t>(b)];
    return left != right ? left > right : a < b;
  };
  const bool needs_order = kept < order_.size() || options_.top_p < 1.0;
  if (needs_order)
    std::partial_sort(order_.begin(), order_.begin() + static_cast<std::ptrdiff_t>(kept),
                      order_.end(), likelier);

  const float largest = *std::max_element(logits.begin(), logits.end());
  double total = 0;
  for (std::size_t i = 0; i < kept; ++i) {
    const double logit = logits[static_cast<std::size_t>(order_[i])];
    total += weights_[i] = std::exp((logit - largest) / options_.temperature);
  }
  if (options_.top_p < 1.0) {
    double mass = 0;
    std::size_t i = 0;
    while (i < kept && (i == 0 || mass < options_.top_p * total)) mass += weights_[i++];
    kept = i;
    total = mass;
  }
  double left = total * random_uniform(static_cast<std::uint64_t>(options_.seed), kSamplerStream,
                                       static_cast<std::uint64_t>(position));
  for (std::size_t i = 0; i + 1 < kept; ++i) {
    left -= weights_[i];
    if (left < 0) return order_[i];
  }
  return order_[kept - 1];
}

}  // namespace anabatic::train
