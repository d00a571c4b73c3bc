// SPDX-License-Identifier: Apache-2.0
// Keys of the section `precision`, and what int8 products do not go with.
#pragma once
#include <string>
#include <vector>

#include "spec/training.h"
#include "train/run_config.h"

namespace anabatic::train {

void add_precision_keys(std::vector<ConfigKey>& keys);
void add_precision_problems(const RunConfig& config, std::vector<std::string>& problems);

spec::ProductOptions product_options(const RunConfig& config);

// For programs outside of training: they compute in bf16 where training has int8 or fp16, which is
// logged, and have no units of another precision.
RunConfig with_inference_precision(RunConfig config);

}  // namespace anabatic::train
