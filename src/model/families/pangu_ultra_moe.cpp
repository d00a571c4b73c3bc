// SPDX-License-Identifier: Apache-2.0
// openPangu-Ultra-MoE: deepseek_v3 without groups and correction bias, with norms around blocks.
// Its files bring their own code; transformers has none.
#include <cmath>

#include "model/families/latent_attention.h"

namespace anabatic::model {
namespace {

constexpr LatentKeys kKeys{.q_rank = "attention_q_lora_dim",
                           .kv_rank = "attention_kv_lora_dim",
                           .nope_dim = "attention_qk_dim",
                           .v_dim = "attention_v_dim"};

Moe read_pangu_moe(ConfigReader& reader, const CommonFields& fields) {
  const Range experts{1, Limits::kExperts};
  Moe moe{.activation = fields.activation};
  moe.num_experts = reader.integer("num_routed_experts", 256, experts);
  moe.top_k = reader.integer("num_experts_per_tok", 8, experts);
  require_enough_experts(reader, "num_experts_per_tok", moe);
  moe.width = reader.integer("moe_intermediate_size", 2048, {1, Limits::kWidth});
  moe.router.is_saved_in_f32 = true;  // as deepseek_v3
  spec::RouterForm& form = moe.router.form;
  form = {.score = spec::RouterScore::kSigmoid,
          .normalizes = reader.boolean("norm_topk_prob", true),
          .scale = read_routed_scale(reader, 2.5)};
  if (form.normalizes) form.epsilon = 1e-20;
  Mlp shared = fields.mlp();
  shared.width =
      moe.width *
      reader.optional_integer("num_shared_experts", 1, {0, Limits::kExperts}).value_or(0);
  if (shared.width > 0) moe.shared = SharedExpert{.mlp = shared};
  return moe;
}

// Files call the norms of a layer with two around each block so.
Spelling with_norms(Spelling names) {
  names.push_back({"mlp_norm.weight", {"pre_mlp_layernorm.weight"}});
  names.push_back({"mlp_post_norm.weight", {"post_mlp_layernorm.weight"}});
  return names;
}

void read_pangu_ultra_moe(ConfigReader& reader, const CommonFields& fields, ModelConfig& config) {
  if (config.spec.rope.variant != "default")
    reader.unsupported("rope_scaling", "expected none, the model's code ignores it");
  const Mla attention =
      read_latent_attention(reader, fields, config.spec.rope,
                            {.q_rank = 1536, .kv_rank = 512, .nope_dim = 128, .v_dim = 128}, kKeys);
  const Moe moe = read_pangu_moe(reader, fields);
  const bool has_two_norms = reader.boolean("sandwich_norm", false);
  const NormPlacement norms = has_two_norms ? NormPlacement::kBoth : NormPlacement::kBefore;
  const std::int64_t num_dense = reader.integer("num_dense_layers", 3, {0, Limits::kLayers});
  for (std::int64_t i = 0; i < fields.num_hidden_layers; ++i)
    config.spec.layers.push_back(
        {.attention = attention,
         .feed_forward = i < num_dense ? FeedForward(fields.mlp()) : FeedForward(moe),
         .norms = norms});
  read_mtp_layers(reader, config, {.attention = attention, .feed_forward = moe, .norms = norms}, 1);
  config.spec.post_norm_start = 1.0 / std::sqrt(static_cast<double>(fields.num_hidden_layers));
  config.spec.spellings = with_shared_experts({Spelling{}, fused_experts("mlp")});
  if (has_two_norms)
    for (Spelling& names : config.spec.spellings) names = with_norms(std::move(names));
}

}  // namespace

const Family kPanguUltraMoe{.model_type = "pangu_ultra_moe",
                            .defaults = {.vocab_size = 153600,
                                         .hidden_size = 7680,
                                         .intermediate_size = 18432,
                                         .num_hidden_layers = 61,
                                         .num_attention_heads = 128,
                                         .num_key_value_heads = 128,
                                         .head_dim = 64,
                                         .max_position_embeddings = 131072,
                                         .rms_norm_eps = 1e-5,
                                         .rope_theta = 25600000.0,
                                         .bos_token_id = 0,
                                         .eos_token_id = 1,
                                         .head_dim_key = "attention_qk_rope_dim"},
                            .read = read_pangu_ultra_moe};

}  // namespace anabatic::model
