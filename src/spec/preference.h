// SPDX-License-Identifier: Apache-2.0
// Losses of preferences, as op attributes name them, and what `preference_loss` adds up.
#pragma once
#include <cstdint>
#include <optional>
#include <string_view>

namespace anabatic::spec {

enum class PreferenceLoss : std::uint8_t { kSigmoid, kHinge, kIpo };

constexpr std::optional<PreferenceLoss> preference_loss_from_string(std::string_view text) {
  if (text == "sigmoid") return PreferenceLoss::kSigmoid;
  if (text == "hinge") return PreferenceLoss::kHinge;
  if (text == "ipo") return PreferenceLoss::kIpo;
  return std::nullopt;
}

// Over the pairs of a micro-batch: numbers of pairs, and of those with z > 0; rewards and
// log-probabilities of both completions, of which each is a sum over its tokens, with
// length_normalized and for ipo their mean; tokens of both; at last the largest |z|, no sum.
enum PreferenceSum : std::uint8_t {
  kPairs,
  kCorrect,
  kChosenReward,
  kRejectedReward,
  kChosenLogProbability,
  kRejectedLogProbability,
  kChosenTokens,
  kRejectedTokens,
  kLargestMargin,
  kNumPreferenceSums
};

}  // namespace anabatic::spec
