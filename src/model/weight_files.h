// SPDX-License-Identifier: Apache-2.0
// Weight maps of open files, shared by the sources of `weights.h`.
#pragma once
#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>

#include "io/safetensors.h"
#include "model/declarations.h"
#include "model/weights.h"

namespace anabatic::model {

// The map of declared parameters in one spelling.
WeightMap map_of(const Declarations& declared, const Spelling& names, DType dtype);
// The name of a parameter's file tensor; `expert` counts where each expert has a tensor.
std::string file_tensor(const Parameter& parameter, const Spelling& names, std::int64_t expert);

// Whether that tensor holds the matrix of one expert.
bool has_tensor_per_expert(const Parameter& parameter, const Spelling& names);

// As read_weight_map; `directory` is for messages.
WeightMap match_weight_map(const ModelConfig& config, const io::SafetensorsDirectory& files,
                           const std::filesystem::path& directory);

// The map in another spelling. A parameter keeps its dtype.
WeightMap respelled(const ModelConfig& config, const WeightMap& map, std::size_t spelling);
// The spelling in which weights of a map are written: quantised ones go out as numbers.
std::size_t export_spelling(const WeightMap& map);
// The spelling that has experts in MXFP4; empty where the family has none.
std::optional<std::size_t> mxfp4_spelling(const ModelConfig& config);

// InvalidArgument if the files repeat a tensor (a tied head) with other values.
void require_equal_repeats(const ModelConfig& config, const WeightMap& map,
                           const io::SafetensorsDirectory& files,
                           const std::filesystem::path& directory);

}  // namespace anabatic::model
