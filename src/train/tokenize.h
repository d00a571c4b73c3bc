// SPDX-License-Identifier: Apache-2.0
// A model directory's tokenizer as the data reader wants it.
#pragma once
#include <cstdint>
#include <filesystem>
#include <vector>

#include "io/data/tokenize_files.h"
#include "io/tokenizer/tokenizer.h"
#include "train/run_config.h"

namespace anabatic::train {

// Appends ids without special tokens. `tokenizer` must outlive the callback.
io::Tokenize tokenize_callback(const io::Tokenizer& tokenizer);

// `eos_token_id`, a number or a list, of a config.json or generation_config.json; empty when there
// is no such file or field. InvalidArgument when it holds anything else.
std::vector<std::int64_t> read_eos_ids(const std::filesystem::path& json_file);

// Documents end with the EOS of tokenizer_config.json, or else the first of config.json, unless
// data.append_eos is off. InvalidArgument when it is on and the model directory names no EOS.
io::TokenizeOptions tokenize_options(const io::Tokenizer& tokenizer, const RunConfig& run,
                                     int threads);

}  // namespace anabatic::train
