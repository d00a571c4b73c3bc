// SPDX-License-Identifier: Apache-2.0
// What a GGUF file has in place of the files next to the weights of a model directory.
#pragma once
#include <filesystem>
#include <string>

#include "io/gguf_writer.h"
#include "model/model.h"

namespace anabatic::train {

// Writes tokenizer.json, tokenizer_config.json and chat_template.jinja of a file that has a
// tokenizer.
void write_tokenizer_of_gguf(const std::filesystem::path& file,
                             const std::filesystem::path& directory);

// Adds the keys of the tokenizer in a model directory or of another GGUF file, or one that says
// that there is none.
void add_tokenizer_keys(const std::filesystem::path& model, const model::ModelConfig& config,
                        io::GgufKeys& keys);

}  // namespace anabatic::train
