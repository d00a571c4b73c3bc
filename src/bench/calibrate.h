// SPDX-License-Identifier: Apache-2.0
// Measures what share of the roof each op reaches: a short training step of a small model with a
// dense and a MoE layer, in bf16 and in fp32.
#pragma once
#include <cstdint>

#include "train/calibration.h"

namespace anabatic::bench {

// A few seconds on `num_threads` threads (0: all cores allowed). Stores nothing.
train::Calibration calibrate(std::int64_t num_threads);

}  // namespace anabatic::bench
