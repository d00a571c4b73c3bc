// SPDX-License-Identifier: Apache-2.0
// Keys of the section `attention`: block-sparse attention.
#pragma once
#include <string>
#include <vector>

#include "train/run_config.h"

namespace anabatic::train {

void add_attention_keys(std::vector<ConfigKey>& keys);
// A file is read for it: its problems are those of attention.blocks.file.
void add_attention_problems(const RunConfig& config, std::vector<std::string>& problems);

}  // namespace anabatic::train
