// SPDX-License-Identifier: Apache-2.0
// The sizes of a mesh as other tools write them: a JSON object such as
// {"data_parallel": 4, "tensor_parallel": 2, "pipeline_parallel": 1}.
#pragma once
#include <cstdint>
#include <filesystem>
#include <string>
#include <vector>

namespace anabatic::train {

struct StrategySize {
  std::string name;  // in the file: "model_parallel"
  std::string key;   // of the run config: "parallel.tensor"
  std::int64_t size = 1;
};

// Adds a problem, which names file and name, for each name that is unknown or given twice, and for
// each value that cannot be. Returns what is without problems, in the order of the file.
std::vector<StrategySize> read_strategy(const std::filesystem::path& file,
                                        std::vector<std::string>& problems);

}  // namespace anabatic::train
