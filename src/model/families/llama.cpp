// SPDX-License-Identifier: Apache-2.0
// Llama 1 to 3, and models with the same layers.
#include <fmt/core.h>

#include "model/family.h"

namespace anabatic::model {
namespace {

void read_llama(ConfigReader& reader, const CommonFields& fields, ModelConfig& config) {
  Gqa attention = fields.attention();
  Mlp mlp = fields.mlp();
  read_attention_bias(reader, attention);
  mlp.bias = reader.boolean("mlp_bias", false);
  if (const auto shards = reader.optional_integer("pretraining_tp", 1, {0, Limits::kHeads});
      shards.value_or(1) > 1)
    reader.unsupported("pretraining_tp", fmt::format("expected 1, got {}", *shards));
  for (std::int64_t i = 0; i < fields.num_hidden_layers; ++i)
    config.spec.layers.push_back({.attention = attention, .feed_forward = mlp});
}

}  // namespace

const Family kLlama{.model_type = "llama",
                    .defaults = {.vocab_size = 32000,
                                 .hidden_size = 4096,
                                 .intermediate_size = 11008,
                                 .num_hidden_layers = 32,
                                 .num_attention_heads = 32,
                                 .num_key_value_heads = 0,
                                 .head_dim = 0,
                                 .max_position_embeddings = 2048,
                                 .rms_norm_eps = 1e-6,
                                 .rope_theta = 10000.0,
                                 .bos_token_id = 1,
                                 .eos_token_id = 2},
                    .read = read_llama};

}  // namespace anabatic::model
