// SPDX-License-Identifier: Apache-2.0
// Mixtral: every layer's feed-forward is a mixture of experts with renormalised top-k weights.
#include <algorithm>

#include "model/family.h"

namespace anabatic::model {
namespace {

void read_mixtral(ConfigReader& reader, ModelConfig& config) {
  read_sliding_window(reader, config, 0);
  read_experts(reader, config, "num_local_experts", "num_experts", 8, 2);
  config.norm_topk_prob = true;
  if (!reader.boolean("norm_topk_prob", true))
    reader.unsupported("norm_topk_prob", "expected true, mixtral renormalises its weights");
  config.moe_intermediate_size = config.intermediate_size;
  std::fill(config.layer_is_moe.begin(), config.layer_is_moe.end(), config.num_experts > 0);
  if (config.num_experts == 0)
    reader.invalid("num_local_experts", "expected at least one expert, got 0");
  if (reader.number("router_jitter_noise", 0.0, 0.0, 1.0) > 0)
    reader.unsupported("router_jitter_noise", "expected 0, got noise in training");
}

}  // namespace

const Family kMixtral{
    .model_type = "mixtral",
    .defaults = {.vocab_size = 32000,
                 .hidden_size = 4096,
                 .intermediate_size = 14336,
                 .num_hidden_layers = 32,
                 .num_attention_heads = 32,
                 .num_key_value_heads = 8,
                 .head_dim = 0,
                 .max_position_embeddings = 131072,
                 .rms_norm_eps = 1e-5,
                 .rope_theta = 1000000.0,
                 .bos_token_id = 1,
                 .eos_token_id = 2},
    .read = read_mixtral,
    .experts = ExpertNames{.block = "block_sparse_moe", .gate = "w1", .up = "w3", .down = "w2"}};

}  // namespace anabatic::model
