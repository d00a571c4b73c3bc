// SPDX-License-Identifier: Apache-2.0
// The map of open files, shared by the sources of `weights.h`.
#pragma once
#include <filesystem>

#include "io/safetensors.h"
#include "model/weights.h"

namespace anabatic::model {

// As read_weight_map; `directory` is for messages.
WeightMap match_weight_map(const ModelConfig& config, const io::SafetensorsDirectory& files,
                           const std::filesystem::path& directory);

// With tied embeddings: InvalidArgument if the files hold a head that differs from the embedding.
void require_tied_head(const ModelConfig& config, const io::SafetensorsDirectory& files,
                       const std::filesystem::path& directory);

}  // namespace anabatic::model
