// SPDX-License-Identifier: Apache-2.0
// OLMo 2: a norm after each block, and norms of queries and keys over all heads together.
#include "model/family.h"

namespace anabatic::model {
namespace {

void read_olmo2(ConfigReader& reader, const CommonFields& fields, ModelConfig& config) {
  Gqa attention = fields.attention();
  read_attention_bias(reader, attention);
  attention.qk_norm = QkNorm::kAllHeads;
  for (std::int64_t i = 0; i < fields.num_hidden_layers; ++i)
    config.spec.layers.push_back(
        {.attention = attention, .feed_forward = fields.mlp(), .norms = NormPlacement::kAfter});
}

}  // namespace

const Family kOlmo2{.model_type = "olmo2",
                    .defaults = {.vocab_size = 50304,
                                 .hidden_size = 4096,
                                 .intermediate_size = 11008,
                                 .num_hidden_layers = 32,
                                 .num_attention_heads = 32,
                                 .num_key_value_heads = 0,
                                 .head_dim = 0,
                                 .max_position_embeddings = 2048,
                                 .rms_norm_eps = 1e-5,
                                 .rope_theta = 10000.0,
                                 .bos_token_id = -1,
                                 .eos_token_id = 50279,
                                 .pad_token_id = 1},
                    .read = read_olmo2};

}  // namespace anabatic::model
