// SPDX-License-Identifier: Apache-2.0
// The keys of the section lora, and model.adapter: which weights get an adapter, and from where.
#pragma once
#include <string>
#include <vector>

#include "train/run_config.h"

namespace anabatic::train {

void add_lora_keys(std::vector<ConfigKey>& keys);
ConfigKey adapter_key();  // model.adapter

// What keys ask for that contradicts them, or that is not there yet with an adapter.
void add_lora_problems(const RunConfig& config, std::vector<std::string>& problems);

}  // namespace anabatic::train
