// SPDX-License-Identifier: Apache-2.0
// Keys of the section `quantization`: quantization-aware training.
#pragma once
#include <string>
#include <vector>

#include "spec/training.h"
#include "train/run_config.h"

namespace anabatic::train {

void add_quantization_keys(std::vector<ConfigKey>& keys);
void add_quantization_problems(const RunConfig& config, std::vector<std::string>& problems);

// Without a grid where it is off.
spec::QuantizationOptions quantization_options(const RunConfig& config);

}  // namespace anabatic::train
