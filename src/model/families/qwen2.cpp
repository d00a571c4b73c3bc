// SPDX-License-Identifier: Apache-2.0
// Qwen2 and Qwen2.5: llama with biases of queries, keys and values, and windows in some layers.
#include "model/family.h"

namespace anabatic::model {
namespace {

void read_qwen2(ConfigReader& reader, const CommonFields& fields, ModelConfig& config) {
  Gqa attention = fields.attention();
  attention.qkv_bias = true;  // always: transformers does not read the fields below
  reader.know({"attention_bias", "qkv_bias"});
  for (const std::int64_t window : read_layer_windows(reader, fields)) {
    attention.window = window;
    config.spec.layers.push_back({.attention = attention, .feed_forward = fields.mlp()});
  }
}

}  // namespace

const Family kQwen2{.model_type = "qwen2",
                    .defaults = {.vocab_size = 151936,
                                 .hidden_size = 4096,
                                 .intermediate_size = 22016,
                                 .num_hidden_layers = 32,
                                 .num_attention_heads = 32,
                                 .num_key_value_heads = 32,
                                 .head_dim = 0,
                                 .max_position_embeddings = 32768,
                                 .rms_norm_eps = 1e-6,
                                 .rope_theta = 10000.0,
                                 .bos_token_id = -1,
                                 .eos_token_id = -1},
                    .read = read_qwen2};

}  // namespace anabatic::model
