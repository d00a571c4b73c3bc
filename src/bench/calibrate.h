// SPDX-License-Identifier: Apache-2.0
// Measures what share of the roof each op reaches: a short training step of a small model with a
// dense and a MoE layer, in bf16 and in fp32.
#pragma once
#include <cstdint>
#include <optional>

#include "train/calibration.h"

namespace anabatic::bench {

// A few seconds on `num_threads` threads (0: all cores allowed). Stores nothing.
train::Calibration calibrate(std::int64_t num_threads);

// Likewise with fewer steps; nothing where a machine of this kind would need more than
// `most_seconds` for it, by default prices, or where others take part of its cores now.
std::optional<train::Calibration> calibrate_within(std::int64_t num_threads, double most_seconds);

}  // namespace anabatic::bench
