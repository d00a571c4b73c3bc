// SPDX-License-Identifier: Apache-2.0
// GLM-4.5: a part of each head rotates, and the experts of deepseek_v3.
#include "model/family.h"

namespace anabatic::model {
namespace {

void read_glm4_moe(ConfigReader& reader, const CommonFields& fields, ModelConfig& config) {
  Gqa attention = fields.attention();
  attention.qkv_bias = reader.boolean("attention_bias", false);  // the output has none
  if (reader.boolean("use_qk_norm", false)) attention.qk_norm = QkNorm::kHead;
  const Router router{.form = {.normalizes = true}};
  const Moe moe = read_biased_experts(
      reader, fields, {.num_experts = 128, .top_k = 8, .width = 1408, .router = router}, 1);
  const std::int64_t num_dense = reader.integer("first_k_dense_replace", 1, {0, Limits::kLayers});
  reader.know({"output_router_logits"});  // the model has no loss of routers
  for (std::int64_t i = 0; i < fields.num_hidden_layers; ++i)
    config.spec.layers.push_back(
        {.attention = attention,
         .feed_forward = i < num_dense ? FeedForward(fields.mlp()) : FeedForward(moe)});
  read_mtp_layers(reader, config, {.attention = attention, .feed_forward = moe}, 1);
  config.spec.spellings = with_shared_experts({Spelling{}, fused_experts("mlp")});
}

}  // namespace

const Family kGlm4Moe{.model_type = "glm4_moe",
                      .defaults = {.vocab_size = 151552,
                                   .hidden_size = 4096,
                                   .intermediate_size = 10944,
                                   .num_hidden_layers = 46,
                                   .num_attention_heads = 96,
                                   .num_key_value_heads = 8,
                                   .head_dim = 0,
                                   .max_position_embeddings = 131072,
                                   .rms_norm_eps = 1e-5,
                                   .rope_theta = 10000.0,
                                   .bos_token_id = -1,
                                   .eos_token_id = -1,
                                   .partial_rotary_factor = 0.5},
                      .read = read_glm4_moe};

}  // namespace anabatic::model
