// SPDX-License-Identifier: Apache-2.0
#include "train/schedule.h"

#include <algorithm>
#include <cmath>
#include <numbers>

namespace anabatic::train {

double learning_rate(const RunConfig::Optimizer& optimizer, std::int64_t step, std::int64_t steps) {
  const double peak = optimizer.learning_rate;
  if (step <= optimizer.warmup_steps)
    return peak * static_cast<double>(step) / static_cast<double>(optimizer.warmup_steps);
  if (optimizer.schedule == "constant") return peak;
  const double length =
      static_cast<double>(std::max<std::int64_t>(1, steps - optimizer.warmup_steps));
  const double progress =
      std::min(1.0, static_cast<double>(step - optimizer.warmup_steps) / length);
  const double share = optimizer.schedule == "linear"
                           ? 1.0 - progress
                           : 0.5 * (1.0 + std::cos(std::numbers::pi * progress));
  return optimizer.min_learning_rate + (peak - optimizer.min_learning_rate) * share;
}

}  // namespace anabatic::train
