// SPDX-License-Identifier: Apache-2.0
// A GGUF file as a model: its metadata as a config.json, its tensors as parameters.
#pragma once
#include <filesystem>
#include <string>

#include "io/gguf.h"
#include "model/import_record.h"

namespace anabatic::model {

// The text of the config.json that the metadata stand for. `dtype` is that of most weights, float32
// for quantised ones. What llama.cpp assumes, norm_topk_prob say, is a field of it. InvalidArgument
// and Unsupported list every key that is missing, wrong or has no place there.
std::string gguf_config(const io::GgufFiles& files);

// As import_weights, of a GGUF file. Quantised values become what their blocks stand for. The map
// is that of an export, in config.dtype.
WeightMap import_gguf(const ModelConfig& config, const std::filesystem::path& file,
                      const StateWriter& write, ImportRecord& record);

}  // namespace anabatic::model
