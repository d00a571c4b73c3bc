// SPDX-License-Identifier: Apache-2.0
// Keys of the section `dropout`, and lora.dropout.
#pragma once
#include <string>
#include <vector>

#include "train/run_config.h"

namespace anabatic::train {

void add_dropout_keys(std::vector<ConfigKey>& keys);
ConfigKey adapter_dropout_key();
void add_dropout_problems(const RunConfig& config, std::vector<std::string>& problems);

// What dropout's draws tell apart, as text: "expected 0, or ..."; empty where the rate is one.
std::string problem_of_rate(double rate);

}  // namespace anabatic::train
