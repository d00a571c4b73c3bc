// SPDX-License-Identifier: Apache-2.0
// A dense model as a mixture of experts that computes the same: every expert is a copy of the MLP
// or, with a granularity G, one G-th part of it.
#pragma once
#include <cstdint>
#include <filesystem>
#include <string>
#include <string_view>

#include "model/weight_source.h"

namespace anabatic::train {

struct UpcycleOptions {
  std::int64_t experts = 0, top_k = 0;  // copies of the MLP, and how many of them a token uses
  std::int64_t granularity = 1;         // parts of a copy, each of which is an expert
  double noise = 0;  // deviation of what experts' weights are multiplied by, around 1
  std::int64_t seed = 0;
  bool operator==(const UpcycleOptions&) const = default;
};

// "experts=8,top_k=2[,granularity=4][,noise=0.01][,seed=1]". InvalidArgument names what is wrong.
UpcycleOptions parse_upcycle(const std::string& text);
std::string to_text(const UpcycleOptions& options);

// The config.json of the mixture: llama and mistral become mixtral, qwen3 becomes qwen3_moe, qwen2
// becomes qwen2_moe. Unsupported for another family.
std::string upcycled_config(const std::string& text, const model::ModelConfig& dense,
                            const UpcycleOptions& options);
// Errors where the mixture would differ from `dense` in more than its MLPs.
void require_same_body(const model::ModelConfig& dense, const model::ModelConfig& mixture);

// The parameters of the mixture. Experts of a copy follow one another, so that of equal scores
// whole copies are chosen. Their rows of the router are equal, drawn with deviation 0.02. Weights
// of a token add up to 1 over experts, and each part has a G-th of its copy's: down is times G. The
// shared expert of qwen2_moe has gate and up of the MLP and zeros in down.
class UpcycledWeights {
 public:
  // Reads `source` whenever it is read.
  UpcycledWeights(model::StateReader source, const model::ModelConfig& dense,
                  const model::ModelConfig& mixture, const UpcycleOptions& options);

  void read(std::string_view state, std::int64_t first, std::span<float> values) const;
  // The dense parameter that a parameter of the mixture is made from; "" for the router's.
  static std::string origin(std::string_view state);

 private:
  void read_expert(std::string_view state, const std::string& from, std::int64_t first,
                   std::span<float> values) const;

  model::StateReader source_;
  UpcycleOptions options_;
  std::int64_t hidden_ = 0, width_ = 0;  // width of the dense MLP
};

}  // namespace anabatic::train
