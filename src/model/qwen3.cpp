// SPDX-License-Identifier: Apache-2.0
// Qwen3: llama with a norm of queries and of keys, and windows in some layers.
#include "model/family.h"

namespace anabatic::model {
namespace {

void read_qwen3(ConfigReader& reader, ModelConfig& config) {
  read_attention_bias(reader, config);
  config.qk_norm = true;
  read_layer_windows(reader, config);
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
