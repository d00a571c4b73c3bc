// SPDX-License-Identifier: Apache-2.0
// Logits of a model directory, to tell whether two directories hold the same model.
#pragma once
#include <cstdint>
#include <filesystem>
#include <span>
#include <string>
#include <vector>

#include "model/lora/merged_weights.h"
#include "model/model.h"

namespace anabatic::train {

// Tokens that probe a model of that vocabulary: `count` ids, always the same ones.
std::vector<std::int32_t> probe_tokens(std::int64_t vocab_size, std::int64_t count = 64);
// Those for a model, fewer where it has learned fewer positions.
std::vector<std::int32_t> probe_tokens(const model::ModelConfig& config);

// Logits [tokens, vocabulary] of one sequence, in fp32. The model is loaded whole. `adapter` is
// that of model.adapter. `merged` is added to the weights in memory, as a merge adds it to files.
std::vector<float> logits_of(const std::filesystem::path& model,
                             std::span<const std::int32_t> tokens, const std::string& adapter = "",
                             const model::AdapterValues* merged = nullptr);

struct LogitsComparison {
  std::int64_t tokens = 0;
  double largest_difference = 0;  // NaN where a logit is not finite
  std::int64_t agreeing = 0;      // tokens with the same most likely next token
};
LogitsComparison compare_logits(std::span<const float> a, std::span<const float> b,
                                std::int64_t vocab_size);

}  // namespace anabatic::train
