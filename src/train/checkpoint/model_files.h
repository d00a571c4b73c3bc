// SPDX-License-Identifier: Apache-2.0
// The files of a checkpoint other than its weights. They are those of the model that it was trained
// from, changed where they disagree with the weights or with each other.
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
  // Reads what will be written and resolves the special tokens, so that an unresolvable conflict
  // fails before the first step. Logs what disagrees, and how many ids of the tokenizer are beyond
  // the model's vocabulary.
  ModelFiles(const RunConfig& run, const model::ModelConfig& config);

  const io::SpecialTokens& special_tokens() const { return special_; }
  std::int64_t num_bytes() const;  // that write() writes, estimated

  // Writes config.json with the dtype of the saved weights, the same EOS and BOS in every file, and
  // a tokenizer that begins a text with the tokens that documents began with. `map` and `dtype` are
  // those of the weights. InternalError naming any remaining disagreement of the written files.
  void write(const std::filesystem::path& directory, const model::WeightMap& map,
             model::SaveDType dtype) const;

 private:
  struct File {
    std::string name, text;
  };

  std::string with_special_tokens(const File& file) const;

  std::filesystem::path source_;
  io::SpecialTokens special_;
  std::string bos_text_, eos_text_;  // "" if no tokenizer knows them
  std::string prefix_text_;          // what the post-processor of tokenizer.json has to add
  std::vector<File> converted_;      // of the tokenizer, where the source has another kind of file
  std::vector<File> files_;          // with the special tokens as they will be written
};

// Disagreements within a model directory, a line each: between config.json, the weights of `map`,
// generation_config.json and the tokenizer. Empty if there are none.
std::string contradictions_in(const std::filesystem::path& directory, const model::WeightMap& map,
                              model::SaveDType dtype, const io::SpecialTokens& special);

}  // namespace anabatic::train
