// SPDX-License-Identifier: Apache-2.0
// Keys of the section `precision`, and what int8 products do not go with.
#pragma once
#include <string>
#include <vector>

#include "ir/graph.h"
#include "spec/training.h"
#include "train/run_config.h"

namespace anabatic::train {

void add_precision_keys(std::vector<ConfigKey>& keys);
void add_precision_problems(const RunConfig& config, std::vector<std::string>& problems);

spec::ProductOptions product_options(const RunConfig& config);

// Whether validations have bf16 products next to int8 ones of steps. Units that precision.keep has
// in fp32 stay so.
bool validates_in_bf16(const RunConfig& config);
spec::ProductOptions validation_product_options(const RunConfig& config);

// What the products of each unit multiply in a step of the run, and why it is not what
// train.precision says. One line a format.
std::string product_formats_to_string(const RunConfig& config, const ir::Graph& step);

// For programs outside of training: they compute in bf16 where training has int8 or fp16, which is
// logged, and have no units of another precision.
RunConfig with_inference_precision(RunConfig config);

}  // namespace anabatic::train
