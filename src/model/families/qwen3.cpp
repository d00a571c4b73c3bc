// SPDX-License-Identifier: Apache-2.0
// Qwen3: llama with a norm of queries and of keys, and windows in some layers.
#include "model/family.h"

namespace anabatic::model {
namespace {

void read_qwen3(ConfigReader& reader, const CommonFields& fields, ModelConfig& config) {
  Gqa attention = fields.attention();
  read_attention_bias(reader, attention);
  attention.qk_norm = QkNorm::kHead;
  for (const std::int64_t window : read_layer_windows(reader, fields)) {
    attention.window = window;
    config.spec.layers.push_back({.attention = attention, .feed_forward = fields.mlp()});
  }
}

}  // namespace

const Family kQwen3{.model_type = "qwen3",
                    .defaults = {.vocab_size = 151936,
                                 .hidden_size = 4096,
                                 .intermediate_size = 22016,
                                 .num_hidden_layers = 32,
                                 .num_attention_heads = 32,
                                 .num_key_value_heads = 32,
                                 .head_dim = 128,
                                 .max_position_embeddings = 32768,
                                 .rms_norm_eps = 1e-6,
                                 .rope_theta = 10000.0,
                                 .bos_token_id = -1,
                                 .eos_token_id = -1},
                    .read = read_qwen3};

}  // namespace anabatic::model
