// SPDX-License-Identifier: Apache-2.0
// What a model family is here: how its config differs from the common fields, and how its files
// name the tensors of an MoE block. `families()` is the table.
#pragma once
#include <cstdint>
#include <optional>
#include <span>
#include <string_view>

#include "model/config_reader.h"
#include "model/model.h"

namespace anabatic::model {

// Defaults of transformers' config class, for fields that a config.json leaves out.
struct FamilyDefaults {
  std::int64_t vocab_size, hidden_size, intermediate_size, num_hidden_layers, num_attention_heads;
  std::int64_t num_key_value_heads;  // 0: as many as attention heads
  std::int64_t head_dim;             // 0: hidden_size / num_attention_heads
  std::int64_t max_position_embeddings;
  double rms_norm_eps;
  double rope_theta;
  std::int64_t bos_token_id, eos_token_id;  // -1: none
};

// Names inside `model.layers.N.`: the block of router and experts, and the three matrices of one
// expert in the per-expert spelling.
struct ExpertNames {
  std::string_view block, gate, up, down;
};

struct Family {
  std::string_view model_type;
  FamilyDefaults defaults;
  // Fields beyond the common ones; the common ones are in `config` already.
  void (*read)(ConfigReader& reader, ModelConfig& config);
  std::optional<ExpertNames> experts{};
};

// One file each.
extern const Family kLlama, kMistral, kMixtral, kQwen2, kQwen3, kQwen3Moe;

std::span<const Family* const> families();  // all, by model_type
// Null when there is no family of that name.
const Family* find_family(std::string_view model_type);

// Shared by families. `sliding_window` null or absent means the fallback (0: none).
void read_sliding_window(ConfigReader& reader, ModelConfig& config, std::int64_t fallback);
// `use_sliding_window` with the layers of `layer_types`, or those from max_window_layers on.
void read_layer_windows(ConfigReader& reader, ModelConfig& config);
void read_attention_bias(ConfigReader& reader, ModelConfig& config);
void read_experts(ConfigReader& reader, ModelConfig& config, const char* key, const char* other_key,
                  std::int64_t num_experts, std::int64_t num_experts_per_tok);

// rope_theta + rope_scaling, or rope_parameters. Needs head_dim and max_position_embeddings.
spec::Rope read_rope(ConfigReader& reader, const ModelConfig& config, double default_theta);

}  // namespace anabatic::model
