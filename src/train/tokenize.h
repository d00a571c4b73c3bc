// SPDX-License-Identifier: Apache-2.0
// A model's tokenizer in the form that data readers need.
#pragma once
#include <cstdint>
#include <filesystem>
#include <optional>
#include <string_view>
#include <vector>

#include "io/data/tokenize_files.h"
#include "io/tokenizer/special_tokens.h"
#include "io/tokenizer/tokenizer.h"
#include "train/run_config.h"

namespace anabatic::train {

// Appends ids without special tokens. `tokenizer` must outlive the callback.
io::Tokenize tokenize_callback(const io::Tokenizer& tokenizer);

// Where model.path has its tokenizer: a GGUF file, or the folder of config.json.
std::filesystem::path tokenizer_folder_or_file(const std::filesystem::path& model);

// The tokenizer there. Nothing if there is none, or if it is of an unsupported kind and the data
// are tokens already.
std::optional<io::Tokenizer> find_tokenizer(const std::filesystem::path& folder_or_file);

// The special tokens of run.model.path, with data.add_bos and data.append_eos. `tokenizer` may be
// null; `default_eos` are the ids that the model's family uses if config.json has no such field.
io::SpecialTokens special_tokens_of(const RunConfig& run, const io::Tokenizer* tokenizer,
                                    std::vector<std::int64_t> default_eos = {});

// A warning for each disagreement of the model's files, and for an EOS that is missing.
void log_warnings(const io::SpecialTokens& special);

// Documents get the special tokens of `special` before and after them.
io::TokenizeOptions tokenize_options(const io::Tokenizer& tokenizer,
                                     const io::SpecialTokens& special, int threads);

// Text and JSON files with their formats, by data.format, which it logs. InvalidArgument for one of
// token ids; `place` stands for the list in errors.
std::vector<io::DataFile> text_files(const std::vector<std::filesystem::path>& files,
                                     const RunConfig& run, std::string_view place);
// Such files into PREFIX.bin/.idx, with the tokenizer of run.model.path; rows of train.objective
// sft into PREFIX.weights too.
io::TokenizeCounts tokenize_files(const std::vector<std::filesystem::path>& files,
                                  const std::filesystem::path& output_prefix, const RunConfig& run,
                                  std::string_view place = "files");

}  // namespace anabatic::train
