// SPDX-License-Identifier: Apache-2.0
// Mixtral: every layer's feed-forward is a mixture of experts with renormalised top-k weights.
#include "model/family.h"

namespace anabatic::model {
namespace {

void read_mixtral(ConfigReader& reader, const CommonFields& fields, ModelConfig& config) {
  Gqa attention = fields.attention();
  attention.window = read_sliding_window(reader, 0);
  Moe moe = read_experts(reader, fields, config, "num_local_experts", "num_experts",
                         {.num_experts = 8, .top_k = 2, .width = fields.intermediate_size});
  if (!reader.boolean("norm_topk_prob", true))
    reader.unsupported("norm_topk_prob", "expected true, mixtral renormalises its weights");
  moe.router.form.normalizes = true;
  require_experts(reader, "num_local_experts", moe);
  if (reader.number("router_jitter_noise", 0.0, 0.0, 1.0) > 0)
    reader.unsupported("router_jitter_noise", "expected 0, got noise in training");
  reader.expect("decoder_sparse_step", 1);
  reader.expect("moe_intermediate_size", fields.intermediate_size);
  for (std::int64_t i = 0; i < fields.num_hidden_layers; ++i)
    config.spec.layers.push_back({.attention = attention, .feed_forward = moe});
  config.spec.spellings = {numbered_experts("block_sparse_moe"), fused_experts("block_sparse_moe"),
                           numbered_experts("mlp"), fused_experts("mlp")};
}

}  // namespace

const Family kMixtral{.model_type = "mixtral",
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
                      .read = read_mixtral};

}  // namespace anabatic::model
