// SPDX-License-Identifier: Apache-2.0
// An adapter as llama.cpp reads it: a GGUF file of its own, next to that of the model.
#pragma once
#include <filesystem>

#include "model/lora/adapter.h"
#include "model/weights.h"

namespace anabatic::model {

// A pair of tensors in F32 for each weight: NAME.lora_a [rank, in] and NAME.lora_b [out, rank],
// with a third, outermost size for experts. NAME is that of the weight in a GGUF file, whose order
// of rows B has. The file has one alpha: B of a group that scales otherwise takes the difference.
// Unsupported for a family that llama.cpp has no architecture for, and names weights that it has no
// tensor for.
void write_gguf_adapter(const ModelConfig& config, const Adapter& adapter, const StateReader& read,
                        const std::filesystem::path& file);

}  // namespace anabatic::model
