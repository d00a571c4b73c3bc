// SPDX-License-Identifier: Apache-2.0
// The keys of the section parallel: how many ranks share a step, and how.
#pragma once
#include <cstdint>
#include <vector>

#include "train/run_config.h"

namespace anabatic::train {

inline constexpr std::int64_t kMostRanks = 32767;  // products of four sizes fit 64 bits

void add_parallel_keys(std::vector<ConfigKey>& keys);

}  // namespace anabatic::train
