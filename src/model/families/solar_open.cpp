// SPDX-License-Identifier: Apache-2.0
// Solar Open: grouped-query attention, and the experts of deepseek_v3 in every layer.
#include "model/family.h"

namespace anabatic::model {
namespace {

void read_solar_open(ConfigReader& reader, const CommonFields& fields, ModelConfig& config) {
  Gqa attention = fields.attention();
  attention.qkv_bias = reader.boolean("attention_bias", false);  // the output has none
  const Moe moe =
      read_biased_experts(reader, fields, {.num_experts = 128, .top_k = 8, .width = 1280}, 1);
  reader.know({"output_router_logits"});  // the model has no loss of routers
  for (std::int64_t i = 0; i < fields.num_hidden_layers; ++i)
    config.spec.layers.push_back({.attention = attention, .feed_forward = moe});
  config.spec.spellings = with_shared_experts({Spelling{}, fused_experts("mlp")});
}

}  // namespace

const Family kSolarOpen{.model_type = "solar_open",
                        .defaults = {.vocab_size = 196608,
                                     .hidden_size = 4096,
                                     .intermediate_size = -1,
                                     .num_hidden_layers = 48,
                                     .num_attention_heads = 64,
                                     .num_key_value_heads = 8,
                                     .head_dim = 128,
                                     .max_position_embeddings = 131072,
                                     .rms_norm_eps = 1e-5,
                                     .rope_theta = 1000000.0,
                                     .bos_token_id = -1,
                                     .eos_token_id = -1},
                        .read = read_solar_open};

}  // namespace anabatic::model
