// SPDX-License-Identifier: Apache-2.0
// OLMoE: queries and keys normalised over all heads together, then clipped; experts in each layer.
#include <fmt/core.h>

#include <limits>

#include "model/family.h"

namespace anabatic::model {
namespace {

void read_olmoe(ConfigReader& reader, const CommonFields& fields, ModelConfig& config) {
  Gqa attention = fields.attention();
  read_attention_bias(reader, attention);
  attention.qk_norm = QkNorm::kAllHeads;
  attention.clip_qkv =
      reader.optional_number("clip_qkv", std::numeric_limits<float>::min(), 1e30).value_or(0.0);
  if (attention.head_dim * attention.num_heads != fields.hidden_size)
    reader.invalid("head_dim",
                   fmt::format("expected hidden_size / num_attention_heads, {} / {}, the width of "
                               "olmoe's norms, got {}",
                               fields.hidden_size, attention.num_heads, attention.head_dim));
  Moe moe = read_experts(reader, fields, config, "num_experts", "num_local_experts",
                         {.num_experts = 64, .top_k = 8, .width = fields.intermediate_size}, 0.01);
  require_experts(reader, "num_experts", moe);
  moe.router.form.normalizes = reader.boolean("norm_topk_prob", false);
  reader.expect("decoder_sparse_step", 1);
  reader.expect("moe_intermediate_size", fields.intermediate_size);
  for (std::int64_t i = 0; i < fields.num_hidden_layers; ++i)
    config.spec.layers.push_back({.attention = attention, .feed_forward = moe});
  config.spec.spellings.push_back(fused_experts("mlp"));
}

}  // namespace

const Family kOlmoe{.model_type = "olmoe",
                    .defaults = {.vocab_size = 50304,
                                 .hidden_size = 2048,
                                 .intermediate_size = 2048,
                                 .num_hidden_layers = 16,
                                 .num_attention_heads = 16,
                                 .num_key_value_heads = 0,
                                 .head_dim = 0,
                                 .max_position_embeddings = 4096,
                                 .rms_norm_eps = 1e-5,
                                 .rope_theta = 10000.0,
                                 .bos_token_id = -1,
                                 .eos_token_id = 50279,
                                 .pad_token_id = 1},
                    .read = read_olmoe};

}  // namespace anabatic::model
