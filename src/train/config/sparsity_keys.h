// SPDX-License-Identifier: Apache-2.0
// The key `sparsity.weights`, a list of maps: which weights become sparse, how, and when.
#pragma once
#include <string>
#include <vector>

#include "spec/sparsity.h"
#include "train/run_config.h"

namespace anabatic::train {

void add_sparsity_keys(std::vector<ConfigKey>& keys);
void add_sparsity_problems(const RunConfig& config, std::vector<std::string>& problems);

// Without entries where it is off.
spec::SparsityOptions sparsity_options(const RunConfig& config);

// Whether there are sparse weights, and their masks stay as they are after this step.
bool has_final_masks(const RunConfig& config, std::int64_t step);

}  // namespace anabatic::train
