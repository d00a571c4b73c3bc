// SPDX-License-Identifier: Apache-2.0
// The adapter that keys of a run ask for, and the weights that it belongs to.
#pragma once
#include <filesystem>
#include <memory>
#include <optional>
#include <string>

#include "model/import_record.h"
#include "model/lora/peft_files.h"
#include "tensor/block_format.h"
#include "train/run_config.h"

namespace anabatic::train {

// A fresh one by lora.targets, or that of lora.from or model.adapter; null where no key names one.
// Errors of those files; InvalidArgument where keys disagree with them.
std::shared_ptr<const model::Adapter> adapter_of(const RunConfig& run,
                                                 const model::ModelConfig& config);

// The directory whose values the adapter begins with; "" where it begins afresh.
const std::string& adapter_directory(const RunConfig& run);
// Its files, read as adapter_of reads them.
model::PeftFiles adapter_files(const RunConfig& run, const model::ModelConfig& config);

// InvalidArgument where the files hold weights that are not those of the model `base`.
void require_weights_of(const model::PeftFiles& files, const std::string& base);

// InvalidArgument where model.path is an adapter, which is no model.
void require_no_adapter(const std::string& model_path);

// How frozen matrices are held (lora.base); none: in the dtype of train.precision.
std::optional<BlockFormat> frozen_format_of(const RunConfig& run);

// For who uses an adapter without training it: what its weights are held in here, and were there.
std::string base_to_string(const RunConfig& run);

// What the frozen weights are, for a resume: a hash of what was read, or the seed that they were
// drawn from.
std::string base_identity(const RunConfig& run, const model::ImportRecord& record);

// Written next to the logs of a run: which weights have an adapter, and what is frozen.
inline constexpr const char* kCoverageFile = "lora.txt";

}  // namespace anabatic::train
