// SPDX-License-Identifier: Apache-2.0
// The map of open files, shared by the sources of `weights.h`.
#pragma once
#include <cstdint>
#include <filesystem>
#include <string>

#include "io/safetensors.h"
#include "model/declarations.h"
#include "model/weights.h"

namespace anabatic::model {

// The map of what the builder declares, in one spelling.
WeightMap map_of(const Declarations& declared, const Spelling& names, DType dtype);
// A parameter's tensor in files; `expert` where each expert has its own.
std::string file_tensor(const Parameter& parameter, const Spelling& names, std::int64_t expert);

// As read_weight_map; `directory` is for messages.
WeightMap match_weight_map(const ModelConfig& config, const io::SafetensorsDirectory& files,
                           const std::filesystem::path& directory);

// InvalidArgument if the files hold a tensor again (a tied head) and its values differ.
void require_equal_repeats(const ModelConfig& config, const WeightMap& map,
                           const io::SafetensorsDirectory& files,
                           const std::filesystem::path& directory);

}  // namespace anabatic::model
