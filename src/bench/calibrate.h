// SPDX-License-Identifier: Apache-2.0
// Measures which share of the roof each op reaches, and the extra time that a call takes for its
// weights. It runs short training steps of a small model with a dense and a MoE layer, of 512 and
// of 2048 tokens, in bf16 and in fp32.
#pragma once
#include <cstdint>
#include <optional>

#include "train/calibration.h"

namespace anabatic::bench {

// Times of an op at one size of a step, over its calls.
struct OpTimes {
  double calls = 0, seconds = 0;
  double roof_seconds = 0;  // what peak and copy bandwidth allow at best
  double weight_bytes = 0;  // plan::weight_bytes
};

struct OpPrice {
  double share_of_roof = 0, fixed_seconds = 0, weight_bytes = 0;  // as plan::OpEfficiency has them
};

// The line through both sizes, roof_seconds / share_of_roof + fixed_seconds a call, where their
// roofs differ enough and their weights do not; one share where not. None for calls that take
// little more than waking the team, which say nothing of the roof.
std::optional<OpPrice> price_of(const OpTimes& small, const OpTimes& large);

// About 10 seconds on `num_threads` threads (0: all cores allowed). Stores nothing.
train::Calibration calibrate(std::int64_t num_threads);

// Likewise; nothing where a machine of this kind would need more than
// `most_seconds` for it, by default prices, or where others take part of its cores now.
std::optional<train::Calibration> calibrate_within(std::int64_t num_threads, double most_seconds);

}  // namespace anabatic::bench
