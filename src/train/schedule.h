// SPDX-License-Identifier: Apache-2.0
// The learning rate as a pure function of the step.
#pragma once
#include <cstdint>

#include "train/run_config.h"

namespace anabatic::train {

// The learning rate of step 1, 2, ... of `steps`. Warm-up: peak · step / warmup_steps up to
// warmup_steps. Then it falls from the peak to the minimum at the last step along half a cosine or
// a line, or it is constant.
double learning_rate(const RunConfig::Optimizer& optimizer, std::int64_t step, std::int64_t steps);

}  // namespace anabatic::train
