// SPDX-License-Identifier: Apache-2.0
#include "train/settings_search.h"

#include <algorithm>
#include <map>

#include "base/error.h"

namespace anabatic::train {
namespace {

// The largest n in [1, most] whose trial fits; tries by doubling, then by bisection.
template <class Try>
std::optional<Trial> largest(std::int64_t first, std::int64_t most, const Try& trial) {
  std::optional<Trial> best;
  std::int64_t low = 0, high = most + 1;  // low fits (or is 0), high does not (or is out of range)
  std::int64_t n = std::clamp<std::int64_t>(first, 1, most);
  while (low + 1 < high) {
    const Trial result = trial(n);
    if (result.fits) {
      best = result;
      low = n;
      n = high > most ? std::min(2 * n, most) : low + (high - low) / 2;
    } else {
      high = n;
      n = low + (high - low) / 2;
    }
    if (n == low) ++n;
  }
  return best;
}

}  // namespace

SettingsFound search_settings(const Setting& given, const SettingsLimits& limits,
                              const std::function<Trial(const Setting&)>& try_setting) {
  ANABATIC_REQUIRE(
      given.micro_batch_size > 0 && given.sequence_length > 0 && limits.sequence_step > 0,
      "[settings] expected a micro-batch and a sequence of at least 1, got {} and {}",
      given.micro_batch_size, given.sequence_length);
  SettingsFound found{.limits = limits};
  std::map<std::pair<std::int64_t, std::int64_t>, Trial> tried;
  const auto attempt = [&](const Setting& setting) {
    const auto [at, is_new] =
        tried.try_emplace({setting.micro_batch_size, setting.sequence_length});
    if (is_new) at->second = try_setting(setting);
    const Trial& trial = at->second;
    if (trial.fits && setting.sequence_length == given.sequence_length &&
        (!found.fastest || trial.tokens_per_second > found.fastest->tokens_per_second))
      found.fastest = trial;
    return trial;
  };
  found.largest_micro_batch =
      largest(given.micro_batch_size, std::max<std::int64_t>(limits.micro_batch_size, 1),
              [&](std::int64_t n) {
                return attempt({n, given.sequence_length});
              });
  if (found.fastest) {
    const std::int64_t most = found.largest_micro_batch->setting.micro_batch_size;
    for (std::int64_t stride = found.fastest->setting.micro_batch_size / 2; stride > 0;
         stride /= 2) {
      const std::int64_t from = found.fastest->setting.micro_batch_size;
      for (const std::int64_t n : {from - stride, from + stride})
        if (n >= 1 && n <= most) attempt({n, given.sequence_length});
    }
  }
  const std::int64_t step = limits.sequence_step;
  found.longest_sequence =
      largest(std::max<std::int64_t>(given.sequence_length / step, 1),
              std::max<std::int64_t>(limits.sequence_length / step, 1), [&](std::int64_t n) {
                return attempt({given.micro_batch_size, n * step});
              });
  found.num_trials = static_cast<std::int64_t>(tried.size());
  return found;
}

}  // namespace anabatic::train
