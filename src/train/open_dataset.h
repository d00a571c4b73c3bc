// SPDX-License-Identifier: Apache-2.0
// The data files of a run config as samples.
#pragma once
#include <optional>
#include <string>
#include <vector>

#include "io/data/dataset.h"
#include "model/model.h"
#include "train/run_config.h"

namespace anabatic::train {

// Detects the format of each file (data.format) and logs it. Text and JSON are tokenised with the
// tokenizer in model.path into a cache (data.cache). InvalidArgument if an id is not in the
// vocabulary.
io::Dataset open_dataset(const std::vector<std::string>& files, const RunConfig& run,
                         const model::ModelConfig& config);

// The same without tokenising: nothing if `files` are empty, or some are text, JSON or missing.
std::optional<io::Dataset> open_tokenized(const std::vector<std::string>& files,
                                          const RunConfig& run, const model::ModelConfig& config);

// Warns if the model's files disagree about BOS and EOS, and data.validation is text that gets
// them.
void warn_of_special_tokens(const RunConfig& run, const model::ModelConfig& config);

// Warns if data.sequence_length exceeds the positions that the model was made for. InvalidArgument
// if it exceeds those that it has learned, or the blocks that a mask of attention has.
void check_sample_length(const RunConfig& run, const model::ModelConfig& config);

}  // namespace anabatic::train
