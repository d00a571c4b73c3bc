// SPDX-License-Identifier: Apache-2.0
// The files of a model as convert sees them: a directory of safetensors, or a GGUF file.
#pragma once
#include <filesystem>
#include <string>
#include <variant>
#include <vector>

#include "model/gguf_source.h"
#include "model/weight_source.h"
#include "train/convert/manifest.h"

namespace anabatic::train {

// The config of a model, with the layers of multi-token prediction that its files hold, unless they
// are to be left out.
model::ModelConfig load_whole(const std::filesystem::path& path, bool keeps_mtp = true);

class StoredModel {
 public:
  // Errors as those of load_config and of the two sources.
  explicit StoredModel(const std::filesystem::path& path, bool keeps_mtp = true);

  const model::ModelConfig& config() const { return config_; }
  const model::WeightMap& map() const;
  model::StateReader reader() const;  // as long as this lives
  // Null for a GGUF file.
  const model::WeightSource* directory() const { return std::get_if<model::WeightSource>(&files_); }

  bool is_quantised() const;  // some of its tensors have scales, or are in blocks

  // Tensors, hashed. Those that no parameter reads are added to `others`.
  std::vector<ManifestTensor> describe(Direction direction,
                                       std::vector<ManifestTensor>& others) const;
  // Every value has to be that of `source`, rounded as its tensor is.
  model::ValueComparison compare(const model::StateReader& source) const;

 private:
  using Files = std::variant<model::WeightSource, model::GgufSource>;
  static Files open(const model::ModelConfig& config, const std::filesystem::path& path);

  model::ModelConfig config_;
  Files files_;
};

}  // namespace anabatic::train
