// SPDX-License-Identifier: Apache-2.0
// Keys of preferences, and what else a run on them may ask for.
#pragma once
#include <string>
#include <vector>

#include "train/run_config.h"

namespace anabatic::train {

void add_dpo_keys(std::vector<ConfigKey>& keys);

void add_dpo_problems(const RunConfig& config, std::vector<std::string>& problems);

}  // namespace anabatic::train
