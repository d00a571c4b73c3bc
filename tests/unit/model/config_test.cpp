// SPDX-License-Identifier: Apache-2.0
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <nlohmann/json.hpp>

#include "base/log.h"
#include "model/family.h"
#include "unit/model/model_files.h"

namespace anabatic::model {
namespace {

using ::testing::Contains;
using ::testing::Each;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

TEST(Config, TakesTheDefaultsOfTransformersForWhatIsAbsent) {
  const ModelConfig llama = config_from(R"({"model_type": "llama"})");
  EXPECT_EQ(llama.spec.hidden_size, 4096);
  EXPECT_EQ(llama.spec.layers.size(), 32u);
  const Mlp& mlp = std::get<Mlp>(llama.spec.layers[0].feed_forward);
  EXPECT_EQ(mlp.width, 11008);
  EXPECT_EQ(mlp.activation, spec::Activation{});
  EXPECT_EQ(gqa_of(llama).num_kv_heads, 32);
  EXPECT_EQ(gqa_of(llama).head_dim, 128);
  EXPECT_EQ(llama.spec.norm_epsilon, 1e-6);
  EXPECT_EQ(llama.spec.rope.theta, 10000.0);
  EXPECT_EQ(llama.bos_token_id, 1);
  EXPECT_THAT(llama.eos_token_ids, ElementsAre(2));
  EXPECT_EQ(llama.spec.padding_token, -1);
  EXPECT_FALSE(llama.spec.head.is_tied);

  const ModelConfig mistral = config_from(R"({"model_type": "mistral"})");
  EXPECT_EQ(gqa_of(mistral).num_kv_heads, 8);
  EXPECT_THAT(windows_of(mistral), Each(4096));

  const ModelConfig qwen2 = config_from(R"({"model_type": "qwen2", "attention_bias": false})");
  EXPECT_EQ(gqa_of(qwen2).head_dim, 128);
  EXPECT_TRUE(gqa_of(qwen2).qkv_bias);  // transformers reads no such field
  EXPECT_FALSE(gqa_of(qwen2).output_bias);
  EXPECT_EQ(gqa_of(qwen2).qk_norm, QkNorm::kNone);

  const ModelConfig qwen3 = config_from(R"({"model_type": "qwen3", "hidden_size": 1024})");
  EXPECT_EQ(gqa_of(qwen3).head_dim, 128);
  EXPECT_EQ(qwen3.spec.vocab_size, 151936);
  EXPECT_EQ(gqa_of(qwen3).qk_norm, QkNorm::kHead);
  EXPECT_THAT(windows_of(qwen3), Each(0));
  EXPECT_TRUE(qwen3.eos_token_ids.empty());
}

TEST(Config, TakesTheDefaultsOfTransformersForExperts) {
  const ModelConfig mixtral = config_from(R"({"model_type": "mixtral"})");
  EXPECT_EQ(mixtral.spec.rope.theta, 1e6);
  EXPECT_EQ(mixtral.spec.norm_epsilon, 1e-5);
  const Moe& experts = *first_moe(mixtral.spec);
  EXPECT_EQ(experts.num_experts, 8);
  EXPECT_EQ(experts.top_k, 2);
  EXPECT_EQ(experts.width, 14336);
  EXPECT_EQ(experts.activation, spec::Activation{});
  EXPECT_TRUE(experts.router.form.normalizes);
  EXPECT_EQ(mixtral.router_aux_loss_coef, 0.001);
  EXPECT_THAT(windows_of(mixtral), Each(0));

  const ModelConfig qwen3_moe = config_from(R"({"model_type": "qwen3_moe"})");
  const Moe& many = *first_moe(qwen3_moe.spec);
  EXPECT_EQ(many.num_experts, 128);
  EXPECT_EQ(many.top_k, 8);
  EXPECT_EQ(many.width, 768);
  EXPECT_FALSE(many.router.form.normalizes);
  EXPECT_EQ(gqa_of(qwen3_moe).num_kv_heads, 4);
  EXPECT_EQ(gqa_of(qwen3_moe).head_dim, 64);
}

TEST(Config, ReadsSharedExpertsAndWindowsOfQwen2Moe) {
  const ModelConfig plain = config_from(R"({"model_type": "qwen2_moe"})");
  const Moe& moe = *first_moe(plain.spec);
  EXPECT_EQ(moe.num_experts, 60);
  EXPECT_EQ(moe.top_k, 4);
  EXPECT_EQ(moe.width, 1408);
  EXPECT_FALSE(moe.router.form.normalizes);
  ASSERT_TRUE(moe.shared.has_value());
  EXPECT_EQ(moe.shared->mlp.width, 5632);
  EXPECT_TRUE(moe.shared->is_gated);
  EXPECT_TRUE(gqa_of(plain).qkv_bias);
  EXPECT_FALSE(gqa_of(plain).output_bias);
  EXPECT_THAT(windows_of(plain), Each(0));
  EXPECT_THAT(sparse_layers(plain), Each(true));

  const ModelConfig odd =
      config_from(small_json("qwen2_moe", R"("num_hidden_layers": 6, "use_sliding_window": true,
                 "sliding_window": 3, "max_window_layers": 4, "decoder_sparse_step": 2,
                 "mlp_only_layers": [3], "qkv_bias": false)"));
  EXPECT_THAT(windows_of(odd), ElementsAre(3, 0, 3, 0, 0, 0));
  EXPECT_THAT(sparse_layers(odd), ElementsAre(false, true, false, false, false, true));
  EXPECT_FALSE(gqa_of(odd).qkv_bias);
}

TEST(Config, TakesTheDefaultsOfTransformersForOlmo) {
  const ModelConfig olmoe = config_from(R"({"model_type": "olmoe"})");
  EXPECT_EQ(olmoe.spec.padding_token, 1);
  EXPECT_EQ(olmoe.spec.norm_epsilon, 1e-5);
  EXPECT_EQ(olmoe.router_aux_loss_coef, 0.01);
  EXPECT_EQ(gqa_of(olmoe).qk_norm, QkNorm::kAllHeads);
  EXPECT_EQ(gqa_of(olmoe).clip_qkv, 0);
  EXPECT_EQ(first_moe(olmoe.spec)->num_experts, 64);
  EXPECT_EQ(first_moe(olmoe.spec)->top_k, 8);
  EXPECT_FALSE(first_moe(olmoe.spec)->router.form.normalizes);
  EXPECT_EQ(olmoe.spec.layers[0].norms, NormPlacement::kBefore);
  EXPECT_EQ(config_from(R"({"model_type": "olmoe", "pad_token_id": null})").spec.padding_token, -1);

  const ModelConfig flex = config_from(R"({"model_type": "flex_olmo"})");
  EXPECT_EQ(flex.spec.padding_token, 100277);
  EXPECT_EQ(flex.spec.norm_epsilon, 1e-6);
  EXPECT_EQ(flex.spec.rope.theta, 5e5);
  EXPECT_EQ(first_moe(flex.spec)->num_experts, 7);
  EXPECT_EQ(first_moe(flex.spec)->top_k, 5);
  EXPECT_EQ(flex.spec.layers[0].norms, NormPlacement::kAfter);

  const ModelConfig olmo2 = config_from(R"({"model_type": "olmo2"})");
  EXPECT_EQ(olmo2.spec.padding_token, 1);
  EXPECT_EQ(olmo2.spec.norm_epsilon, 1e-5);
  EXPECT_EQ(gqa_of(olmo2).qk_norm, QkNorm::kAllHeads);
  EXPECT_EQ(olmo2.spec.layers[0].norms, NormPlacement::kAfter);
}

TEST(Config, ReadsTheMultipliersOfGranite) {
  const ModelConfig plain = config_from(R"({"model_type": "granitemoeshared"})");
  EXPECT_EQ(gqa_of(plain).softmax_scale, 1.0);  // not 1 / sqrt(head_dim)
  EXPECT_EQ(plain.spec.logits_divisor, 1);
  EXPECT_FALSE(first_moe(plain.spec)->shared.has_value());
  EXPECT_TRUE(first_moe(plain.spec)->router.form.normalizes);
  const ModelConfig config = config_from(small_json(
      "granitemoeshared", R"("attention_multiplier": 0.015625, "embedding_multiplier": 12.0,
                             "residual_multiplier": 0.22, "logits_scaling": 6)"));
  EXPECT_EQ(gqa_of(config).softmax_scale, 0.015625);
  EXPECT_EQ(config.spec.embedding_multiplier, 12);
  EXPECT_EQ(config.spec.residual_multiplier, 0.22);
  EXPECT_EQ(config.spec.logits_divisor, 6);
  EXPECT_EQ(first_moe(config.spec)->shared->mlp.width, 7);
}

TEST(Config, ReadsLatentAttentionAndGroupsOfDeepseek) {
  const ModelConfig v3 = config_from(R"({"model_type": "deepseek_v3"})");
  const Mla& mla = std::get<Mla>(v3.spec.layers.at(0).attention);
  EXPECT_EQ(mla.num_heads, 128);
  EXPECT_EQ(mla.q_rank, 1536);
  EXPECT_EQ(mla.rope_dim, 64);
  EXPECT_EQ(mla.scale, 1.0 / std::sqrt(192.0));
  EXPECT_EQ(v3.spec.rope.rotary_dim, 64);
  const spec::RouterForm& router = first_moe(v3.spec)->router.form;
  EXPECT_EQ(router.groups, 8);
  EXPECT_EQ(router.group_top_k, 4);
  EXPECT_EQ(router.scale, 2.5);
  EXPECT_EQ(router.epsilon, 1e-20);
  EXPECT_TRUE(std::holds_alternative<Mlp>(v3.spec.layers.at(2).feed_forward));
  EXPECT_TRUE(std::holds_alternative<Moe>(v3.spec.layers.at(3).feed_forward));

  const auto yarn = R"("rope_scaling": {"type": "yarn", "factor": 40, "mscale": 1.0,
                       "mscale_all_dim": 1.0, "original_max_position_embeddings": 16})";
  const ModelConfig stretched = config_from(small_json("deepseek_v2", yarn));
  const double mscale = 0.1 * 1.0 * std::log(40.0) + 1.0;
  EXPECT_EQ(std::get<Mla>(stretched.spec.layers.at(0).attention).scale,
            1.0 / std::sqrt(7.0) * mscale * mscale);
}

TEST(Config, ReadsPartialRotationOfGlmAndMinimax) {
  const ModelConfig glm = config_from(R"({"model_type": "glm4_moe", "head_dim": 128})");
  EXPECT_EQ(glm.spec.rope.rotary_dim, 64);
  EXPECT_EQ(gqa_of(glm).qk_norm, QkNorm::kNone);
  EXPECT_EQ(first_moe(glm.spec)->num_experts, 128);
  EXPECT_TRUE(std::holds_alternative<Mlp>(glm.spec.layers.at(0).feed_forward));

  const ModelConfig minimax = config_from(R"({"model_type": "minimax_m2", "rotary_dim": 64})");
  EXPECT_EQ(minimax.spec.rope.rotary_dim, 64);
  EXPECT_EQ(gqa_of(minimax).qk_norm, QkNorm::kAllHeads);
  EXPECT_EQ(first_moe(minimax.spec)->router.form.epsilon, 0);
  EXPECT_THAT(message_of<InvalidArgument>([] {
                config_from(R"({"model_type": "minimax_m2", "rotary_dim": 64,
                                "rope_parameters": {"partial_rotary_factor": 0.25}})");
              }),
              HasSubstr("rotary_dim: expected the 32 columns"));
}

TEST(Config, ReadsAlphaAndListsOfHunyuan) {
  const ModelConfig plain = config_from(R"({"model_type": "hunyuan_v1_moe"})");
  EXPECT_EQ(first_moe(plain.spec)->num_experts, 1);
  EXPECT_EQ(first_moe(plain.spec)->shared->mlp.width, 11008);
  EXPECT_TRUE(gqa_of(plain).norms_after_rope);
  EXPECT_EQ(plain.spec.padding_token, 0);

  const ModelConfig published = config_from(small_json("hunyuan_v1_moe", R"(
      "num_experts": [4, 4, 4], "moe_intermediate_size": [10, 10, 10], "norm_topk_prob": true,
      "num_shared_expert": [1, 1, 1], "use_qk_norm": true, "use_mixed_mlp_moe": true,
      "group_limited_greedy": false, "n_group": false, "topk_group": false,
      "rope_scaling": {"type": "dynamic", "factor": 1.0, "alpha": 100.0, "beta_fast": 32})"));
  EXPECT_EQ(first_moe(published.spec)->num_experts, 4);
  EXPECT_EQ(first_moe(published.spec)->top_k, 2);
  EXPECT_EQ(published.spec.rope.variant, "default");
  EXPECT_EQ(published.spec.rope.theta, 1e4 * std::pow(100.0, 4.0 / 2.0));
  const std::string dynamic = R"("rope_scaling": {"type": "dynamic", "factor": 2.0, "alpha": 0})";
  EXPECT_EQ(config_from(small_json("hunyuan_v1_moe", dynamic)).spec.rope.variant, "dynamic");
  EXPECT_THROW(config_from(small_json("llama", dynamic)), Unsupported);
}

TEST(Config, ReadsTheLayersAndTheRouterOfErnie) {
  const ModelConfig plain = config_from(R"({"model_type": "ernie4_5_moe"})");
  const Moe& moe = *first_moe(plain.spec);
  EXPECT_EQ(moe.num_experts, 64);
  EXPECT_EQ(moe.top_k, 6);
  EXPECT_EQ(moe.shared->mlp.width, 2 * 1536);
  EXPECT_TRUE(moe.router.form.has_bias);
  EXPECT_EQ(moe.router.form.score, spec::RouterScore::kSoftmax);
  EXPECT_EQ(moe.router.form.floor, 1e-12);
  EXPECT_TRUE(gqa_of(plain).rotates_pairs);
  EXPECT_TRUE(plain.spec.head.is_tied);
  EXPECT_EQ(plain.spec.rope.theta, 5e5);
  EXPECT_EQ(plain.router_aux_loss_coef, 0.001);

  const ModelConfig odd = config_from(small_json("ernie4_5_moe", R"("num_hidden_layers": 6,
      "moe_layer_start_index": 2, "moe_layer_end_index": 4, "moe_layer_interval": 2,
      "moe_num_shared_experts": 0)"));
  EXPECT_THAT(sparse_layers(odd), ElementsAre(false, false, false, true, false, false));
  EXPECT_FALSE(first_moe(odd.spec)->shared.has_value());
}

TEST(Config, ReadsTheWindowsTheRopeAndTheExpertsOfGptOss) {
  const ModelConfig plain = config_from(R"({"model_type": "gpt_oss", "num_hidden_layers": 3})");
  const Moe& moe = *first_moe(plain.spec);
  EXPECT_EQ(moe.num_experts, 128);
  EXPECT_EQ(moe.top_k, 4);
  EXPECT_EQ(moe.width, 2880);
  EXPECT_TRUE(moe.expert_bias && moe.router.bias && moe.router.form.normalizes);
  EXPECT_EQ(moe.activation,
            (spec::Activation{
                .kind = spec::ActivationKind::kSwigluClamped, .alpha = 1.702, .limit = 7.0}));
  EXPECT_THAT(windows_of(plain), ElementsAre(128, 0, 128));
  const Gqa& attention = gqa_of(plain);
  EXPECT_TRUE(attention.has_sinks && attention.qkv_bias && attention.output_bias);
  EXPECT_EQ(plain.spec.rope, (spec::Rope{.variant = "yarn",
                                         .rotary_dim = 64,
                                         .theta = 150000.0,
                                         .factor = 32.0,
                                         .max_position = 131072,
                                         .original_max_position = 4096,
                                         .truncate = false}));
  EXPECT_EQ(plain.router_aux_loss_coef, 0.001);

  // As published, but for the form of the weights.
  const ModelConfig published = config_from(small_json("gpt_oss", R"("attention_bias": true,
      "experts_per_token": 2, "initial_context_length": 4096, "swiglu_limit": 5.0,
      "layer_types": ["full_attention", "sliding_attention", "sliding_attention"],
      "sliding_window": 8, "rope_theta": 150000, "rope_scaling": {"rope_type": "yarn",
      "beta_fast": 32.0, "beta_slow": 1.0, "factor": 32.0, "truncate": false,
      "original_max_position_embeddings": 4096}, "router_aux_loss_coef": 0.9)"));
  EXPECT_THAT(windows_of(published), ElementsAre(0, 8, 8));
  EXPECT_EQ(first_moe(published.spec)->activation.limit, 5.0);
  EXPECT_EQ(published.spec.rope.variant, "yarn");
  EXPECT_FALSE(published.spec.rope.truncate);

  const ModelConfig odd = config_from(small_json("gpt_oss", R"("attention_bias": false,
      "rope_parameters": {"rope_type": "default", "rope_theta": 5e3}, "sliding_window": null,
      "layer_types": ["full_attention", "full_attention", "full_attention"])"));
  EXPECT_FALSE(gqa_of(odd).qkv_bias || gqa_of(odd).output_bias);
  EXPECT_EQ(odd.spec.rope.variant, "default");
  EXPECT_THAT(windows_of(odd), ElementsAre(0, 0, 0));
}

TEST(Config, TakesTheDefaultsOfTransformersForGpt2) {
  const ModelConfig config = config_from(R"({"model_type": "gpt2"})");
  EXPECT_EQ(config.spec.hidden_size, 768);
  EXPECT_EQ(config.spec.vocab_size, 50257);
  EXPECT_EQ(config.spec.layers.size(), 12u);
  EXPECT_EQ(config.spec.norm, NormKind::kLayer);
  EXPECT_EQ(config.spec.norm_epsilon, 1e-5);
  EXPECT_EQ(config.spec.learned_positions, 1024);
  EXPECT_EQ(config.max_position_embeddings, 1024);
  EXPECT_EQ(config.spec.residual_deviation, 0.02 / std::sqrt(24.0));
  EXPECT_TRUE(config.spec.head.is_tied);
  EXPECT_EQ(config.bos_token_id, 50256);
  EXPECT_THAT(config.eos_token_ids, ElementsAre(50256));
  const Mlp& mlp = std::get<Mlp>(config.spec.layers[0].feed_forward);
  EXPECT_EQ(mlp.width, 3072);
  EXPECT_EQ(mlp.activation.kind, spec::ActivationKind::kGeluTanh);
  EXPECT_TRUE(mlp.bias);
  EXPECT_EQ(gqa_of(config).num_kv_heads, 12);
  EXPECT_EQ(gqa_of(config).head_dim, 64);
  EXPECT_EQ(*gqa_of(config, 3).softmax_scale, 0.125);
  EXPECT_EQ(config.counts.total, 124'439'808);  // as published
}

TEST(Config, ReadsGpt2ByItsOwnNames) {
  const ModelConfig config =
      config_from(R"({"model_type": "gpt2", "n_embd": 15, "n_layer": 3, "n_head": 5, "n_inner": 7,
          "n_positions": 9, "n_ctx": 9, "activation_function": "gelu", "vocab_size": 11,
          "layer_norm_epsilon": 1e-3, "scale_attn_weights": false, "reorder_and_upcast_attn": true,
          "scale_attn_by_inverse_layer_idx": true, "summary_type": "cls_index"})");
  EXPECT_EQ(config.spec.hidden_size, 15);
  EXPECT_EQ(config.spec.learned_positions, 9);
  EXPECT_EQ(config.spec.norm_epsilon, 1e-3);
  EXPECT_EQ(gqa_of(config).head_dim, 3) << "odd, for nothing rotates";
  EXPECT_EQ(*gqa_of(config, 2).softmax_scale, 1.0 / 3);
  const Mlp& mlp = std::get<Mlp>(config.spec.layers[0].feed_forward);
  EXPECT_EQ(mlp.width, 7);
  EXPECT_EQ(mlp.activation.kind, spec::ActivationKind::kGelu);
  EXPECT_EQ(
      config_from(R"({"model_type": "gpt2", "hidden_size": 24, "n_inner": null})").spec.hidden_size,
      24);
}

TEST(Config, GivesGpt2TheRatesOfItsDropout) {
  const ModelConfig config = config_from(R"({"model_type": "gpt2", "resid_pdrop": 0,
                                             "embd_pdrop": 0.25})");
  EXPECT_EQ(config.dropout.residual, 0);
  EXPECT_EQ(config.dropout.embedding, 0.25);
  EXPECT_EQ(config.dropout.attention, 0.1) << "as in transformers, where the file has none";
}

TEST(Config, GivesErnieItsBiases) {
  const ModelConfig biased = config_from(small_json("ernie4_5_moe", R"("use_bias": true)"));
  EXPECT_TRUE(gqa_of(biased).qkv_bias && gqa_of(biased).output_bias);
  EXPECT_TRUE(std::get<Mlp>(biased.spec.layers[0].feed_forward).bias);
  EXPECT_TRUE(first_moe(biased.spec)->shared->mlp.bias);
  EXPECT_TRUE(biased.spec.head.bias);
  const ModelConfig plain = config_from(small_json("ernie4_5_moe", R"("use_bias": null)"));
  EXPECT_FALSE(gqa_of(plain).qkv_bias || plain.spec.head.bias);
}

TEST(Config, TakesAConfigThatNamesTheClassOfAFamily) {
  const std::string json = small_json("deepseek_v3", R"("model_type": "kimi_k2",
                                                        "architectures": ["DeepseekV3ForCausalLM"])");
  EXPECT_EQ(config_from(json).model_type, "deepseek_v3");
  EXPECT_THROW(config_from(small_json("deepseek_v3", R"("model_type": "kimi_k2")")), Unsupported);
}

TEST(Config, RefusesWhatDeepseekCannotMean) {
  const auto problem = [](const std::string& type, const std::string& members) {
    const std::string json = small_json(type, members);
    return message_of<Error>([&] { config_from(json); });
  };
  EXPECT_THAT(problem("deepseek_v3", R"("num_key_value_heads": 3)"),
              HasSubstr("num_key_value_heads: expected num_attention_heads 6"));
  EXPECT_THAT(problem("deepseek_v3", R"("topk_group": 4)"),
              HasSubstr("topk_group: expected at most n_group, 3, got 4"));
  EXPECT_THAT(problem("deepseek_v3", R"("n_group": 4)"),
              HasSubstr("n_group: expected groups of 6 experts with at least 2 each, got 4"));
  EXPECT_THAT(problem("deepseek_v3", R"("topk_group": 1)"),
              HasSubstr("expected at most 2 experts in 1 groups, got 3"));
  EXPECT_THAT(problem("deepseek_v2", R"("norm_topk_prob": true)"),
              HasSubstr("norm_topk_prob: expected false"));
  EXPECT_THAT(problem("deepseek_v2", R"("topk_method": "noaux_tc")"), HasSubstr("topk_method"));
  EXPECT_THAT(problem("deepseek_v2", R"("num_experts_per_tok": null)"),
              HasSubstr("num_experts_per_tok"));
}

// No family of the table has it yet.
TEST(Config, ReadsThePartOfAHeadThatRotates) {
  const auto columns = [](const std::string& members, double fallback) {
    const nlohmann::json json = nlohmann::json::parse("{" + members + "}");
    ConfigReader reader(JsonNode(json, ""));
    FamilyDefaults defaults = find_family("llama")->defaults;
    defaults.partial_rotary_factor = fallback;
    const CommonFields fields{.head_dim = 20, .max_position_embeddings = 32};
    const spec::Rope rope = read_rope(reader, fields, defaults);
    const bool is_fine = reader.invalid_problems().empty() && reader.unsupported_problems().empty();
    return is_fine ? rope.rotary_dim : -1;
  };
  EXPECT_EQ(columns("", 0), 20);
  EXPECT_EQ(columns(R"("partial_rotary_factor": 0.5)", 0), -1);
  EXPECT_EQ(columns("", 0.5), 10);
  EXPECT_EQ(columns(R"("partial_rotary_factor": 0.25)", 0.5), -1);  // 5 columns
  EXPECT_EQ(columns(R"("partial_rotary_factor": 0.3)", 0.5), 6);
  EXPECT_EQ(columns(R"("partial_rotary_factor": 0.3, "rope_parameters":
                       {"rope_type": "linear", "factor": 2, "partial_rotary_factor": 0.8})",
                    0.5),
            16);
  EXPECT_EQ(columns(R"("rope_parameters": {"rope_type": "default"})", 0.5), 10);
  EXPECT_EQ(columns(R"("partial_rotary_factor": 0.0)", 0.5), -1);
}

TEST(Config, ReadsRoutersOfDots1) {
  const ModelConfig config =
      config_from(small_json("dots1", R"("n_group": 3, "topk_group": 2, "norm_topk_prob": true,
                 "routed_scaling_factor": 2.5, "first_k_dense_replace": 1, "sliding_window": 4,
                 "max_window_layers": 2, "output_router_logits": true)"));
  const Moe& moe = *first_moe(config.spec);
  EXPECT_EQ(moe.router.form, (spec::RouterForm{.score = spec::RouterScore::kSigmoid,
                                               .has_bias = true,
                                               .groups = 3,
                                               .group_top_k = 2,
                                               .group_score = spec::GroupScore::kTop2,
                                               .normalizes = true,
                                               .epsilon = 1e-20,
                                               .scale = 2.5}));
  EXPECT_EQ(moe.shared->mlp.width, 10);
  EXPECT_FALSE(moe.shared->is_gated);
  EXPECT_THAT(sparse_layers(config), ElementsAre(false, true, true));
  EXPECT_THAT(windows_of(config), ElementsAre(0, 0, 4));
  EXPECT_EQ(config.router_aux_loss_coef, 0);  // its model has no such loss
}

TEST(Config, ReadsSolarOpenWithExpertsInEveryLayer) {
  const ModelConfig config = config_from(
      R"({"model_type": "solar_open", "attention_bias": true, "num_hidden_layers": 2})");
  EXPECT_TRUE(gqa_of(config).qkv_bias);
  EXPECT_FALSE(gqa_of(config).output_bias);
  EXPECT_EQ(config.spec.rope.rotary_dim, 128);
  EXPECT_THAT(sparse_layers(config), ElementsAre(true, true));
  const Moe& moe = *first_moe(config.spec);
  EXPECT_EQ(moe.router.form, (spec::RouterForm{.score = spec::RouterScore::kSigmoid,
                                               .has_bias = true,
                                               .group_score = spec::GroupScore::kTop2,
                                               .normalizes = true,
                                               .epsilon = 1e-20}));
  EXPECT_EQ(moe.shared->mlp.width, 1280);
  EXPECT_THAT(config.sizes, Contains(std::pair<std::string, std::int64_t>("intermediate_size", 0)));
  const ModelConfig renamed = config_from(
      R"({"model_type": "solar_open", "num_local_experts": 16, "n_shared_experts": 3})");
  EXPECT_EQ(first_moe(renamed.spec)->num_experts, 16);
  EXPECT_EQ(first_moe(renamed.spec)->shared->mlp.width, 3 * 1280);
}

TEST(Config, GivesGlm4MoeLiteItsSparseLayersAndDefaults) {
  const ModelConfig config = config_from(small_json("glm4_moe_lite"));
  EXPECT_THAT(sparse_layers(config), ElementsAre(false, true, true));
  EXPECT_EQ(first_moe(config.spec)->router.form.scale, 1.8);
  EXPECT_EQ(config.spec.norm_epsilon, 1e-5);
  EXPECT_FALSE(config.has_balance_loss);
  const ModelConfig listed = config_from(
      small_json("glm4_moe_lite",
                 R"("mlp_layer_types": ["dense", "dense", "sparse"], "first_k_dense_replace": 2)"));
  EXPECT_THAT(sparse_layers(listed), ElementsAre(false, false, true));
  for (const auto& [members, message] :
       {std::pair(R"("mlp_layer_types": ["dense"])",
                  "expected 3 entries (num_hidden_layers), got 1"),
        std::pair(R"("num_key_value_heads": 2)", "expected num_attention_heads 6"),
        std::pair(R"("qk_head_dim": 8)", "expected 7"),
        std::pair(R"("first_k_dense_replace": 2)", "first_k_dense_replace: expected 1"),
        std::pair(R"("mlp_layer_types": ["dense", "moe", "sparse"])", "dense or sparse, got moe")})
    EXPECT_THAT(
        message_of<Error>([&, json = small_json("glm4_moe_lite", members)] { config_from(json); }),
        HasSubstr(message))
        << members;
}

TEST(Config, GivesPanguItsRouterAndTwoNormsAroundABlock) {
  const ModelConfig config = config_from(small_json("pangu_ultra_moe"));
  EXPECT_THAT(sparse_layers(config), ElementsAre(false, true, true));
  EXPECT_EQ(first_moe(config.spec)->router.form,
            (spec::RouterForm{.score = spec::RouterScore::kSigmoid,
                              .normalizes = true,
                              .epsilon = 1e-20,
                              .scale = 2.5}));
  EXPECT_EQ(config.spec.rope.theta, 25.6e6);
  const auto& attention = std::get<Mla>(config.spec.layers[0].attention);
  EXPECT_EQ(attention.q_rank, 5);
  EXPECT_EQ(attention.v_dim, 6);
  EXPECT_FALSE(attention.bias);
  EXPECT_EQ(config.spec.layers[2].norms, NormPlacement::kBoth);
  const ModelConfig plain = config_from(small_json("pangu_ultra_moe", R"("sandwich_norm": false)"));
  EXPECT_EQ(plain.spec.layers[2].norms, NormPlacement::kBefore);
  for (const auto& [members, message] :
       {std::pair(R"("num_experts_per_tok": 7)", "expected at most 6 experts, got 7"),
        std::pair(R"("attention_bias": true)", "attention_bias: expected false"),
        std::pair(R"("rope_scaling": {"type": "linear", "factor": 2})",
                  "rope_scaling: expected none"),
        std::pair(R"("n_group": 2)", "n_group: expected 0")})
    EXPECT_THAT(message_of<Error>(
                    [&, json = small_json("pangu_ultra_moe", members)] { config_from(json); }),
                HasSubstr(message))
        << members;
}

TEST(Config, HasTheActivationOfHiddenAct) {
  const std::pair<const char*, spec::ActivationKind> cases[] = {
      {"silu", spec::ActivationKind::kSwiglu},
      {"gelu", spec::ActivationKind::kGeglu},
      {"gelu_pytorch_tanh", spec::ActivationKind::kGegluTanh},
      {"relu2", spec::ActivationKind::kReglu2}};
  for (const auto& [name, kind] : cases) {
    const std::string field = std::string(R"("hidden_act": ")") + name + "\"";
    const ModelConfig config = config_from(small_json("mixtral", field));
    EXPECT_EQ(first_moe(config.spec)->activation.kind, kind) << name;
  }
}

TEST(Config, KeepsItsSizesByTheirNames) {
  const ModelConfig dense = config_from(small_json("llama"));
  EXPECT_THAT(dense.sizes, Contains(std::pair<std::string, std::int64_t>("intermediate_size", 10)));
  EXPECT_THAT(dense.sizes, Contains(std::pair<std::string, std::int64_t>("num_experts", 0)));
  EXPECT_THAT(config_from(small_json("qwen3_moe")).sizes,
              Contains(std::pair<std::string, std::int64_t>("moe_intermediate_size", 5)));
}

TEST(Config, ReadsOldAndNewSpellingsAlike) {
  const ModelConfig old_rope = config_from(
      small_json("llama", R"("rope_theta": 5e5, "rope_scaling": {"type": "linear", "factor": 4},
                  "torch_dtype": "bfloat16")"));
  const ModelConfig new_rope = config_from(small_json(
      "llama",
      R"("rope_parameters": {"rope_theta": 500000.0, "rope_type": "linear", "factor": 4.0},
         "dtype": "bfloat16")"));
  EXPECT_EQ(old_rope.spec.rope, new_rope.spec.rope);
  EXPECT_EQ(old_rope.spec.rope.variant, "linear");
  EXPECT_EQ(old_rope.spec.rope.theta, 5e5);
  EXPECT_EQ(old_rope.spec.rope.factor, 4.0);
  EXPECT_EQ(old_rope.dtype, "bfloat16");
  EXPECT_EQ(new_rope.dtype, "bfloat16");

  for (const char* key : {"num_experts", "num_local_experts"})
    for (const char* family : {"mixtral", "qwen3_moe"}) {
      const std::string json = std::string(R"({"model_type": ")") + family + R"(", ")" + key +
                               R"(": 16, "num_experts_per_tok": 4})";
      EXPECT_EQ(num_experts(config_from(json).spec), 16) << json;
    }
}

TEST(Config, ReadsOneEndTokenManyOrNone) {
  EXPECT_THAT(config_from(small_json("llama", R"("eos_token_id": 7)")).eos_token_ids,
              ElementsAre(7));
  EXPECT_THAT(config_from(small_json("llama", R"("eos_token_id": [3, 5])")).eos_token_ids,
              ElementsAre(3, 5));
  EXPECT_TRUE(config_from(small_json("llama", R"("eos_token_id": null)")).eos_token_ids.empty());
}

TEST(Config, TreatsNullAsTransformersDoes) {
  const ModelConfig llama = config_from(R"({"model_type": "llama", "hidden_size": 64,
      "num_attention_heads": 8, "num_key_value_heads": null, "head_dim": null,
      "rope_scaling": null, "pretraining_tp": null})");
  EXPECT_EQ(gqa_of(llama).num_kv_heads, 8);
  EXPECT_EQ(gqa_of(llama).head_dim, 8);
  const ModelConfig mistral = config_from(small_json("mistral", R"("sliding_window": null)"));
  EXPECT_THAT(windows_of(mistral), Each(0));
}

TEST(Config, LetsHeadSizeDifferFromHiddenOverHeads) {
  const ModelConfig config = config_from(small_json("llama", R"("head_dim": 10)"));
  EXPECT_EQ(gqa_of(config).head_dim, 10);
  EXPECT_EQ(config.spec.rope.rotary_dim, 10);
}

TEST(Config, SetsBiasesAsEachFamilyUsesThem) {
  const ModelConfig llama =
      config_from(small_json("llama", R"("attention_bias": true, "mlp_bias": true)"));
  EXPECT_TRUE(gqa_of(llama).qkv_bias && gqa_of(llama).output_bias);
  EXPECT_TRUE(std::get<Mlp>(llama.spec.layers[0].feed_forward).bias);
  const ModelConfig qwen3 =
      config_from(small_json("qwen3_moe", R"("attention_bias": true, "mlp_only_layers": [0])"));
  EXPECT_TRUE(gqa_of(qwen3).qkv_bias && gqa_of(qwen3).output_bias);
  EXPECT_FALSE(std::get<Mlp>(qwen3.spec.layers[0].feed_forward).bias);
}

TEST(Config, GivesQwen3WindowsToSomeLayers) {
  const ModelConfig by_count = config_from(small_json(
      "qwen3", R"("use_sliding_window": true, "sliding_window": 8, "max_window_layers": 2)"));
  EXPECT_THAT(windows_of(by_count), ElementsAre(0, 0, 8));
  const ModelConfig by_type = config_from(
      small_json("qwen3", R"("use_sliding_window": true, "sliding_window": 8, "layer_types":
                     ["sliding_attention", "full_attention", "sliding_attention"])"));
  EXPECT_THAT(windows_of(by_type), ElementsAre(8, 0, 8));
  const ModelConfig off =
      config_from(small_json("qwen3", R"("use_sliding_window": false, "sliding_window": 8)"));
  EXPECT_THAT(windows_of(off), Each(0));
  EXPECT_FALSE(off.counts.has_window());
}

TEST(Config, ChoosesSparseLayersByStepAndList) {
  const auto layers = [](const std::string& members) {
    return sparse_layers(config_from(small_json("qwen3_moe", members)));
  };
  EXPECT_THAT(layers(""), ElementsAre(true, true, true));
  EXPECT_THAT(layers(R"("decoder_sparse_step": 2)"), ElementsAre(false, true, false));
  EXPECT_THAT(layers(R"("mlp_only_layers": [0, 2])"), ElementsAre(false, true, false));
  EXPECT_THAT(layers(R"("mlp_only_layers": null)"), ElementsAre(true, true, true));
}

TEST(Config, IsDenseWhenNoLayerIsSparse) {
  const ModelConfig config = config_from(
      small_json("qwen3_moe", R"("mlp_only_layers": [0, 1, 2], "output_router_logits": true)"));
  EXPECT_EQ(num_experts(config.spec), 0);
  EXPECT_FALSE(config.output_router_logits);
  EXPECT_EQ(config.router_aux_loss_coef, 0.0);
}

TEST(Config, ReadsEveryRopeVariant) {
  const auto rope = [](const std::string& members) {
    return config_from(small_json("llama", members)).spec.rope;
  };
  EXPECT_EQ(rope("").variant, "default");
  EXPECT_EQ(rope(R"("rope_scaling": {})").variant, "default");
  EXPECT_EQ(rope(R"("rope_scaling": {"type": "dynamic", "factor": 2})").variant, "dynamic");

  const spec::Rope llama3 = rope(R"("rope_scaling": {"rope_type": "llama3", "factor": 8,
      "low_freq_factor": 1, "high_freq_factor": 4, "original_max_position_embeddings": 16})");
  EXPECT_EQ(llama3.original_max_position, 16);
  EXPECT_EQ(llama3.high_freq_factor, 4.0);

  const spec::Rope yarn = rope(R"("rope_parameters": {"rope_type": "yarn", "rope_theta": 1e4,
      "factor": 4, "beta_fast": 0, "mscale": 0.7, "mscale_all_dim": 1.2, "truncate": false})");
  EXPECT_EQ(yarn.original_max_position, 32);  // max_position_embeddings stands in
  EXPECT_EQ(yarn.beta_fast, 32.0);            // 0 means the default
  EXPECT_EQ(yarn.mscale, 0.7);
  EXPECT_LT(yarn.attention_factor, 0.0);
  EXPECT_FALSE(yarn.truncate);

  // A yarn without a factor stretches to max_position_embeddings; the outer field comes first.
  const spec::Rope implied = rope(R"("original_max_position_embeddings": 8, "rope_scaling":
      {"rope_type": "yarn", "factor": null, "original_max_position_embeddings": 16})");
  EXPECT_EQ(implied.factor, 4.0);
}

TEST(Config, PrefersTheOldRopeSpellingAsTransformersDoes) {
  const spec::Rope rope = config_from(small_json("llama", R"("rope_theta": 3e4,
          "rope_scaling": {"type": "linear", "factor": 2},
          "rope_parameters": {"rope_type": "dynamic", "factor": 3, "rope_theta": 7e4})"))
                              .spec.rope;
  EXPECT_EQ(rope.variant, "linear");
  EXPECT_EQ(rope.theta, 3e4);
}

TEST(Config, IgnoresFieldsThatDoNotTouchTheMaths) {
  EXPECT_NO_THROW(config_from(small_json("mixtral", R"("architectures": ["MixtralForCausalLM"],
      "transformers_version": "4.36.0", "use_cache": true, "attention_dropout": 0.0,
      "some_tool": {"a": 1}, "router_jitter_noise": 0.0, "attention_bias": false)")));
}

TEST(Config, TakesEachFamilysNeutralValues) {
  const std::pair<const char*, const char*> cases[] = {
      {"qwen3_moe", R"("use_qk_norm": true, "qkv_bias": false, "shared_expert_intermediate_size": 0,
                       "max_window_layers": 2, "sliding_window": 16, "use_sliding_window": false)"},
      {"qwen3", R"("use_qk_norm": true, "max_window_layers": 3, "pretraining_tp": 1)"},
      {"llama", R"("use_qk_norm": false, "attention_multiplier": 0.5, "query_pre_attn_scalar": 4,
                   "sliding_window": 16, "use_sliding_window": false, "max_window_layers": 28,
                   "no_rope_layers": [1, 1, 1], "rotary_pct": 1.0, "logit_scale": 1,
                   "layer_types": ["full_attention", "full_attention", "full_attention"])"},
      {"olmoe", R"("clip_qkv": null, "use_qk_norm": true, "moe_intermediate_size": 10,
                   "sliding_window": null)"},
      {"olmo2", R"("clip_qkv": null, "qk_norm": true, "num_experts": 0)"},
      {"granitemoe", R"("num_experts": 4, "norm_topk_prob": true, "shared_intermediate_size": 0,
                        "position_embedding_type": "rope")"},
      {"mistral", R"("sliding_window": 16, "use_sliding_window": true, "max_window_layers": 0,
                     "layer_types": ["sliding_attention", "sliding_attention", "sliding_attention"])"},
      {"mixtral", R"("decoder_sparse_step": 1, "moe_intermediate_size": 10, "mlp_only_layers": [],
                     "use_sliding_window": false, "n_group": 1, "quantization_config": {})"}};
  for (const auto& [family, members] : cases)
    EXPECT_NO_THROW(config_from(small_json(family, members))) << members;
}

TEST(Config, WarnsOfFieldsThatNothingReads) {
  std::string said;
  const LogScope scope([&](Severity, const std::string& text) { said += text + '\n'; });
  config_from(small_json("llama", R"("gated_memory": false, "some_tool": 0, "other": null,
                                     "use_cache": true)"));
  EXPECT_THAT(said, testing::HasSubstr("are ignored: gated_memory, some_tool\n"));
}

TEST(Config, ReadsAFileAsWellAsItsFolder) {
  const io::TempDirectory folder;
  io::write_text(folder / "config.json", small_json("llama"));
  EXPECT_EQ(load_config(folder / "config.json").sizes, load_config(folder.path()).sizes);
}

TEST(Config, CountsANegativePaddingIndexFromTheEnd) {
  EXPECT_EQ(config_from(small_json("llama", R"("pad_token_id": -1)")).spec.padding_token, 10);
}

}  // namespace
}  // namespace anabatic::model
