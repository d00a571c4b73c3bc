// SPDX-License-Identifier: Apache-2.0
// DeepSeek-V2 and V3: latent attention, dense layers first, then experts in groups next to shared
// ones. They differ in how the router scores and weighs.
#include <fmt/core.h>

#include "model/families/latent_attention.h"

namespace anabatic::model {
namespace {

constexpr Range kAnyWidth{1, Limits::kWidth};

Mla read_attention(ConfigReader& reader, const CommonFields& fields, const spec::Rope& rope) {
  Mla mla = read_latent_attention(reader, fields, rope,
                                  {.q_rank = 1536, .kv_rank = 512, .nope_dim = 128, .v_dim = 128});
  mla.bias = reader.boolean("attention_bias", false);
  return mla;
}

Moe read_moe_v2(ConfigReader& reader, const CommonFields& fields, ModelConfig& config) {
  Moe moe = read_experts(reader, fields, config, "n_routed_experts", "num_experts",
                         {.num_experts = 64, .top_k = 1}, 0.0);
  require_experts(reader, "n_routed_experts", moe);
  moe.router.is_saved_in_f32 = true;
  if (!reader.has("num_experts_per_tok"))
    reader.invalid("num_experts_per_tok", "expected a number, got none");
  config.output_router_logits = config.has_balance_loss = false;  // transformers adds no loss here
  moe.width = reader.integer("moe_intermediate_size", 1407, kAnyWidth);
  const std::int64_t shared = reader.integer("n_shared_experts", 2, {1, Limits::kExperts});
  moe.shared = {.mlp = {.width = moe.width * shared, .activation = fields.activation}};
  return moe;
}

void add_layers(ConfigReader& reader, const CommonFields& fields, const Mla& attention,
                const Moe& moe, const Mlp& dense, std::int64_t first_sparse, ModelConfig& config) {
  first_sparse = reader.integer("first_k_dense_replace", first_sparse, {0, Limits::kLayers});
  for (std::int64_t i = 0; i < fields.num_hidden_layers; ++i)
    config.spec.layers.push_back(
        {.attention = attention,
         .feed_forward = i < first_sparse ? FeedForward(dense) : FeedForward(moe)});
  config.spec.spellings = with_shared_experts({Spelling{}, fused_experts("mlp")});
}

void read_deepseek_v2(ConfigReader& reader, const CommonFields& fields, ModelConfig& config) {
  Mla attention = read_attention(reader, fields, config.spec.rope);
  Moe moe = read_moe_v2(reader, fields, config);
  Mlp dense = fields.mlp();
  dense.bias = moe.shared->mlp.bias = reader.boolean("mlp_bias", false);
  spec::RouterForm& form = moe.router.form;
  form.normalizes = false;
  form.scale = read_routed_scale(reader, 1.0);
  const std::string method = reader.string("topk_method", "greedy");
  if (method == "group_limited_greedy") {
    read_groups(reader, moe);
    form.barred = spec::BarredExperts::kZero;
  } else if (method == "greedy") {
    reader.know({"n_group", "topk_group"});
  } else {
    reader.unsupported("topk_method",
                       fmt::format("expected greedy or group_limited_greedy, got '{}'", method));
  }
  // The original model normalises then, transformers does not.
  if (reader.boolean("norm_topk_prob", false))
    reader.unsupported("norm_topk_prob", "expected false, for transformers ignores true");
  add_layers(reader, fields, attention, moe, dense, 0, config);
}

void read_deepseek_v3(ConfigReader& reader, const CommonFields& fields, ModelConfig& config) {
  Mla attention = read_attention(reader, fields, config.spec.rope);
  attention.rotates_pairs = reader.boolean("rope_interleave", true);
  const Router router{.form = {.groups = 8, .group_top_k = 4, .normalizes = true, .scale = 2.5}};
  const Moe moe = read_biased_experts(
      reader, fields, {.num_experts = 256, .top_k = 8, .width = 2048, .router = router}, 1);
  reader.know({"output_router_logits"});  // the model has no loss of routers
  add_layers(reader, fields, attention, moe, fields.mlp(), 3, config);
  read_mtp_layers(reader, config, {.attention = attention, .feed_forward = moe}, 1);
}

}  // namespace

const Family kDeepseekV2{.model_type = "deepseek_v2",
                         .defaults = {.vocab_size = 102400,
                                      .hidden_size = 4096,
                                      .intermediate_size = 11008,
                                      .num_hidden_layers = 32,
                                      .num_attention_heads = 32,
                                      .num_key_value_heads = 0,
                                      .head_dim = 64,
                                      .max_position_embeddings = 2048,
                                      .rms_norm_eps = 1e-6,
                                      .rope_theta = 10000.0,
                                      .bos_token_id = 1,
                                      .eos_token_id = 2,
                                      .head_dim_key = "qk_rope_head_dim"},
                         .read = read_deepseek_v2};

const Family kDeepseekV3{.model_type = "deepseek_v3",
                         .defaults = {.vocab_size = 129280,
                                      .hidden_size = 7168,
                                      .intermediate_size = 18432,
                                      .num_hidden_layers = 61,
                                      .num_attention_heads = 128,
                                      .num_key_value_heads = 128,
                                      .head_dim = 64,
                                      .max_position_embeddings = 4096,
                                      .rms_norm_eps = 1e-6,
                                      .rope_theta = 10000.0,
                                      .bos_token_id = 0,
                                      .eos_token_id = 1,
                                      .head_dim_key = "qk_rope_head_dim"},
                         .read = read_deepseek_v3,
                         .architecture = "DeepseekV3ForCausalLM"};

}  // namespace anabatic::model
