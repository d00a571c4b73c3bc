// SPDX-License-Identifier: Apache-2.0
// Mistral: llama whose attention sees a sliding window, in every layer.
#include "model/family.h"

namespace anabatic::model {
namespace {

void read_mistral(ConfigReader& reader, const CommonFields& fields, ModelConfig& config) {
  Gqa attention = fields.attention();
  attention.window = read_sliding_window(reader, 4096);
  for (std::int64_t i = 0; i < fields.num_hidden_layers; ++i)
    config.spec.layers.push_back({.attention = attention, .feed_forward = fields.mlp()});
}

}  // namespace

const Family kMistral{.model_type = "mistral",
                      .defaults = {.vocab_size = 32000,
                                   .hidden_size = 4096,
                                   .intermediate_size = 14336,
                                   .num_hidden_layers = 32,
                                   .num_attention_heads = 32,
                                   .num_key_value_heads = 8,
                                   .head_dim = 0,
                                   .max_position_embeddings = 131072,
                                   .rms_norm_eps = 1e-6,
                                   .rope_theta = 10000.0,
                                   .bos_token_id = 1,
                                   .eos_token_id = 2},
                      .read = read_mistral};

}  // namespace anabatic::model
