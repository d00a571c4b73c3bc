// SPDX-License-Identifier: Apache-2.0
// Finds the micro-batch and sequence length that fit a budget, by bisection over whole plans.
#pragma once
#include <cstdint>
#include <functional>
#include <optional>
#include <vector>

namespace anabatic::train {

struct Setting {
  std::int64_t micro_batch_size = 0, sequence_length = 0;
};

// The result of one setting.
struct Trial {
  Setting setting;
  bool fits = false;
  std::int64_t peak_bytes = 0;
  double step_seconds = 0, tokens_per_second = 0;
};

struct SettingsLimits {
  std::int64_t micro_batch_size = 4096;
  std::int64_t sequence_length = 1 << 20;  // the longest that the model supports
  // Sequence lengths are tried in multiples of it.
  std::int64_t sequence_step = 64;
};

struct SettingsFound {
  SettingsLimits limits;
  std::optional<Trial> largest_micro_batch;  // at the given sequence length
  std::optional<Trial> longest_sequence;     // at the given micro-batch
  std::optional<Trial> fastest;  // at the given sequence length: the most tokens a second
  std::int64_t num_trials = 0;
};

// `try_setting` plans a setting; memory must not shrink as either number grows. An empty optional:
// not even the smallest fits. The fastest micro-batch is sought uphill from the best one seen, by
// shrinking strides. O(log) trials, none twice.
SettingsFound search_settings(const Setting& given, const SettingsLimits& limits,
                              const std::function<Trial(const Setting&)>& try_setting);

}  // namespace anabatic::train
