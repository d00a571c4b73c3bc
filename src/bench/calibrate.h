// SPDX-License-Identifier: Apache-2.0
// Measures which share of the roof each op reaches, and the extra time that a call takes for its
// weights. It runs short training steps of a small model with a dense and a MoE layer, of 512 and
// of 2048 tokens, in bf16 and in fp32. Products with sparse weights are measured by themselves.
#pragma once
#include <cstdint>
#include <optional>

#include "train/calibration.h"

namespace anabatic::bench {

// Times of an op at one size of a step, over its calls.
struct OpTimes {
  double calls = 0, seconds = 0;
  double roof_seconds = 0;  // the least time that peak and copy bandwidth allow
  double weight_bytes = 0;  // plan::weight_bytes
};

struct OpPrice {
  double share_of_roof = 0, fixed_seconds = 0, weight_bytes = 0;  // as in plan::OpEfficiency
};

// The line through both sizes, roof_seconds / share_of_roof + fixed_seconds for each call, if their
// roofs differ enough and their weights do not. Otherwise one share for both. None for calls that
// take little more than waking the team, which tell nothing about the roof.
std::optional<OpPrice> price_of(const OpTimes& small, const OpTimes& large);

// About 10 seconds on `num_threads` threads (0: all cores allowed). Stores nothing.
train::Calibration calibrate(std::int64_t num_threads);

// Likewise. Returns nothing if that should take more than `most_seconds` at default prices, or if
// other processes use some of the cores at the moment.
std::optional<train::Calibration> calibrate_within(std::int64_t num_threads, double most_seconds);

}  // namespace anabatic::bench
