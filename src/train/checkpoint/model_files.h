// SPDX-License-Identifier: Apache-2.0
// The files beside the weights of a checkpoint: those of the model that it was trained from, made
// to agree with the weights and with each other where they do not.
#pragma once
#include <filesystem>
#include <string>
#include <vector>

#include "io/tokenizer/special_tokens.h"
#include "model/weights.h"
#include "train/run_config.h"

namespace anabatic::train {

class ModelFiles {
 public:
  // Reads what will be written and resolves the special tokens, so that what cannot be made to
  // agree shows before the first step. Says what disagrees, and how many ids of the tokenizer lie
  // beyond the model's vocabulary.
  ModelFiles(const RunConfig& run, const model::ModelConfig& config);

  const io::SpecialTokens& special_tokens() const { return special_; }
  std::int64_t num_bytes() const;  // that write() writes, about

  // config.json with the dtype that the weights are saved in, EOS and BOS alike in every file, and
  // a tokenizer that puts in front of a text what stood in front of the documents. `map` and
  // `dtype` are those of the weights. InternalError naming what the written files still say
  // differently.
  void write(const std::filesystem::path& directory, const model::WeightMap& map,
             model::SaveDType dtype) const;

 private:
  struct File {
    std::string name, text;
  };

  std::string with_special_tokens(const File& file) const;

  std::filesystem::path source_;
  io::SpecialTokens special_;
  std::string bos_text_, eos_text_;  // "" where no tokenizer tells
  std::string prefix_text_;          // what the post-processor of tokenizer.json has to add
  std::vector<File> files_;          // with the special tokens as they will be written
};

// What the files of a model directory say differently of it, a line each: config.json, the weights
// of `map`, generation_config.json and the tokenizer. Empty when they agree.
std::string contradictions_in(const std::filesystem::path& directory, const model::WeightMap& map,
                              model::SaveDType dtype, const io::SpecialTokens& special);

}  // namespace anabatic::train
