// SPDX-License-Identifier: Apache-2.0
// What `info` prints of a model in addition to its config: its files, tokenizer and chat template,
// what is ignored of them and why.
#pragma once
#include <cstdint>
#include <filesystem>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "model/model.h"

namespace anabatic::cli {

// Layers of each kind.
struct LayerKinds {
  std::int64_t dense = 0, moe = 0;
  std::int64_t full = 0, sliding = 0, latent = 0;  // attention
  std::int64_t window = 0;                         // of sliding layers, the widest
};
LayerKinds layer_kinds(const model::ModelSpec& spec);

struct WeightFacts {
  std::string format;  // "safetensors" or "GGUF"
  std::int64_t num_files = 0, num_tensors = 0;
  std::map<std::string, std::int64_t> bytes{};  // by dtype, as the format spells it
  std::string problem{};                        // why they do not fit the config; "": they do

  std::int64_t num_bytes() const;
};

struct TokenizerFacts {
  std::string place;  // a file, or a key of a GGUF file
  std::string kind;   // "BPE", "Unigram", ...
  std::int64_t num_ids = 0;
  std::string problem{};  // why it cannot be read; "": it can
};

struct TemplateFacts {
  std::string place;
  std::int64_t num_bytes = 0;
};

struct Ignored {
  std::string name, why;
};

struct ModelFacts {
  std::optional<WeightFacts> weights{};
  std::optional<TokenizerFacts> tokenizer{};
  std::optional<TemplateFacts> chat_template{};
  std::vector<Ignored> ignored{};

  bool has_problem() const;
};

// `path`: a model directory, its config.json, or a GGUF file.
ModelFacts facts_of(const std::filesystem::path& path, const model::ModelConfig& config);

}  // namespace anabatic::cli
