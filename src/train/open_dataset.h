// SPDX-License-Identifier: Apache-2.0
// The files of a run config as samples.
#pragma once
#include <optional>
#include <string>
#include <vector>

#include "io/data/dataset.h"
#include "model/model.h"
#include "train/run_config.h"

namespace anabatic::train {

// What each file holds is found out (data.format) and logged. Text and JSON are tokenised with the
// tokenizer in model.path into a cache (data.cache). InvalidArgument when an id is not in the
// vocabulary.
io::Dataset open_dataset(const std::vector<std::string>& files, const RunConfig& run,
                         const model::ModelConfig& config);

// Likewise, where that makes no tokens and needs no file that is not here: none where `files` are
// empty, some are text or JSON, or missing.
std::optional<io::Dataset> open_tokenized(const std::vector<std::string>& files,
                                          const RunConfig& run, const model::ModelConfig& config);

// A warning for what the model's files say differently of BOS and EOS, where data.validation is
// text that they go into.
void warn_of_special_tokens(const RunConfig& run, const model::ModelConfig& config);

// A warning where data.sequence_length goes beyond the positions that the model was made for.
void warn_of_long_samples(const RunConfig& run, const model::ModelConfig& config);

}  // namespace anabatic::train
