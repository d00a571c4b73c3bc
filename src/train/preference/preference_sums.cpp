// SPDX-License-Identifier: Apache-2.0
#include "train/preference/preference_sums.h"

#include <algorithm>

namespace anabatic::train {

void PreferenceSums::add(const BoundProgram& program) {
  if (!program.executor->has_output("preference_sums")) return;
  is_of_pairs_ = true;
  const auto* added = program.executor->output("preference_sums").as<const float>();
  const double margin = added[spec::kLargestMargin], before = largest_margin();
  for (std::size_t i = 0; i < sums_.size(); ++i) sums_[i] += added[i];
  // One that is no number stays.
  sums_[spec::kLargestMargin] = margin <= before ? before : margin;
}

std::optional<PreferenceMetrics> PreferenceSums::means() const {
  if (!is_of_pairs_) return std::nullopt;
  const double pairs = std::max(sums_[spec::kPairs], 1.0);
  const auto mean = [&](spec::PreferenceSum of) { return sums_[of] / pairs; };
  PreferenceMetrics result;
  result.pairs = static_cast<std::int64_t>(sums_[spec::kPairs]);
  result.accuracy = mean(spec::kCorrect);
  result.chosen_reward = mean(spec::kChosenReward);
  result.rejected_reward = mean(spec::kRejectedReward);
  result.margin = result.chosen_reward - result.rejected_reward;
  result.chosen_log_probability = mean(spec::kChosenLogProbability);
  result.rejected_log_probability = mean(spec::kRejectedLogProbability);
  result.chosen_tokens = mean(spec::kChosenTokens);
  result.rejected_tokens = mean(spec::kRejectedTokens);
  return result;
}

}  // namespace anabatic::train
