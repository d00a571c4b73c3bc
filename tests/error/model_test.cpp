// SPDX-License-Identifier: Apache-2.0
// What the readers of configs and weights say when the files are wrong.
#include <fmt/core.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "unit/model/model_files.h"

namespace anabatic::model {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;

std::string invalid(const std::string& json) {
  return message_of<InvalidArgument>([&] { config_from(json); });
}
std::string unsupported(const std::string& json) {
  return message_of<Unsupported>([&] { config_from(json); });
}

TEST(ConfigErrors, NameWhatCannotBeRead) {
  EXPECT_THAT(message_of<ResourceError>([] { load_config("/nonexistent/model"); }),
              AllOf(HasSubstr("/nonexistent/model"), HasSubstr("model.path")));
  EXPECT_THAT(invalid("{\"model_type\": \"llama\""),
              HasSubstr("expected a JSON object, got: parse error at line 1, column 23"));
  EXPECT_THAT(invalid("{\"rms_norm_eps\": 1e999}"),
              HasSubstr("expected a JSON object, got: parse error: number overflow"));
  EXPECT_THAT(invalid("[1, 2]"), HasSubstr("expected a JSON object, got [1,2]"));
  constexpr std::size_t kDeep = 200'000;
  EXPECT_THAT(invalid(std::string(kDeep, '[') + std::string(kDeep, ']')),
              HasSubstr("expected a JSON object, got a list of 1 entries"));
  EXPECT_THAT(invalid("{}"), HasSubstr("model_type: expected one of deepseek_v2, deepseek_v3"));
}

TEST(ConfigErrors, ListTheFamiliesThatAreKnown) {
  EXPECT_THAT(
      unsupported(R"({"model_type": "gptj"})"),
      AllOf(HasSubstr("expected one of deepseek_v2, deepseek_v3, dots1, ernie4_5_moe, flex_olmo, "
                      "glm4_moe, glm4_moe_lite, gpt2, gpt_oss, granitemoe, granitemoeshared, "
                      "hunyuan_v1_moe, "),
            HasSubstr("qwen2_moe, qwen3, qwen3_moe, solar_open, got \"gptj\"")));
}

TEST(ConfigErrors, ShowEveryProblemAtOnce) {
  EXPECT_THAT(
      invalid(small_json("mixtral", R"("hidden_size": -4, "rms_norm_eps": "small",
          "num_key_value_heads": 4, "hidden_act": "relu", "num_experts_per_tok": 9)")),
      AllOf(HasSubstr("hidden_size: expected an integer from 1 to 16777216, got -4"),
            HasSubstr("rms_norm_eps: expected a number, got \"small\""),
            HasSubstr("num_key_value_heads: expected a divisor of num_attention_heads 6, got 4"),
            HasSubstr("not supported: hidden_act: expected silu, swish, gelu, gelu_new, "
                      "gelu_pytorch_tanh, relu2, got 'relu'"),
            HasSubstr("num_experts_per_tok: expected at most 4 experts, got 9")));
}

TEST(ConfigErrors, RefuseGroupsThatDoNotHoldTheExperts) {
  const std::pair<const char*, const char*> cases[] = {
      {R"("n_group": 4)", "n_group: expected groups of 6 experts with at least 2 each, got 4"},
      {R"("n_group": 6)", "n_group: expected groups of 6 experts with at least 2 each, got 6"},
      {R"("n_group": 3, "topk_group": 4)", "topk_group: expected at most n_group, 3, got 4"},
      {R"("n_group": 3, "topk_group": 1, "num_experts_per_tok": 3)",
       "num_experts_per_tok: expected at most 2 experts in 1 groups, got 3"},
      {R"("num_experts_per_tok": 7)", "expected at most 6 experts in 1 groups, got 7"},
      {R"("n_shared_experts": 0)", "n_shared_experts: expected at least one shared expert"},
      {R"("routed_scaling_factor": 0)", "routed_scaling_factor: expected more than 0"}};
  for (const auto& [member, message] : cases)
    EXPECT_THAT(invalid(small_json("dots1", member)), HasSubstr(message)) << member;
  for (const char* family : {"deepseek_v2", "deepseek_v3", "pangu_ultra_moe"})
    EXPECT_THAT(invalid(small_json(family, R"("routed_scaling_factor": 0.0)")),
                HasSubstr("routed_scaling_factor: expected more than 0, got 0"))
        << family;
}

TEST(ConfigErrors, NameTheFieldsOfHunyuanAndErnie) {
  EXPECT_THAT(invalid(small_json("hunyuan_v1_moe", R"("moe_topk": 6)")),
              HasSubstr("moe_topk: expected at most 5 experts, got 6"));
  EXPECT_THAT(invalid(small_json("hunyuan_v1_moe", R"("moe_topk": [2, 2])")),
              HasSubstr("moe_topk: expected 3 entries (num_hidden_layers), got 2"));
  EXPECT_THAT(invalid(small_json("hunyuan_v1_moe", R"("num_experts_per_tok": 1)")),
              HasSubstr("moe_topk: expected what num_experts_per_tok says, 1, got 2"));
  EXPECT_THAT(invalid(small_json("ernie4_5_moe", R"("moe_k": 7)")),
              HasSubstr("moe_k: expected at most 6 experts, got 7"));
  EXPECT_THAT(invalid(small_json("ernie4_5_moe", R"("num_experts": 4)")),
              HasSubstr("moe_num_experts: expected what num_experts says, 4, got 6"));
  EXPECT_THAT(invalid(small_json("ernie4_5_moe", R"("moe_layer_interval": 0)")),
              HasSubstr("moe_layer_interval: expected an integer from 1"));
}

TEST(ConfigErrors, NameTheFieldsOfGptOss) {
  EXPECT_THAT(invalid(small_json("gpt_oss", R"("sliding_window": null)")),
              HasSubstr("sliding_window: expected a window"));
  EXPECT_THAT(invalid(small_json("gpt_oss", R"("num_local_experts": 0)")),
              HasSubstr("num_local_experts: expected at least one expert, got 0"));
  for (const char* key : {"swiglu_alpha", "swiglu_limit"})
    for (const char* value : {"0", "-1", "null", "\"7\""})
      EXPECT_THAT(invalid(small_json("gpt_oss", fmt::format("\"{}\": {}", key, value))),
                  HasSubstr(fmt::format("{}: expected a number", key)));
}

TEST(ConfigErrors, CallFieldsAsTheFamilyDoes) {
  EXPECT_THAT(invalid(R"({"model_type": "gpt2", "n_embd": 0, "layer_norm_epsilon": "small"})"),
              AllOf(HasSubstr("n_embd: expected an integer from 1 to 16777216, got 0"),
                    HasSubstr("layer_norm_epsilon: expected a number, got \"small\"")));
  EXPECT_THAT(invalid(R"({"model_type": "gpt2", "n_layer": 3, "num_hidden_layers": 4})"),
              HasSubstr("n_layer: expected what num_hidden_layers says, 4, got 3"));
  EXPECT_THAT(unsupported(R"({"model_type": "gpt2", "activation_function": "relu"})"),
              HasSubstr("activation_function: expected silu, swish, gelu"));
}

TEST(ConfigErrors, RefuseAbsurdSizes) {
  for (const char* member :
       {R"("num_hidden_layers": 1099511627776)", R"("num_hidden_layers": 0)",
        R"("vocab_size": 99999999999999999999)", R"("hidden_size": 18446744073709551615)",
        R"("num_attention_heads": -1)", R"("head_dim": 3)", R"("head_dim": 1e3)",
        R"("intermediate_size": true)", R"("max_position_embeddings": 4294967296)"})
    EXPECT_THAT(invalid(small_json("llama", member)), HasSubstr("expected")) << member;
  EXPECT_THAT(invalid(small_json("qwen3_moe", R"("num_experts": 65536, "hidden_size": 16777216,
                                                 "moe_intermediate_size": 16777216)")),
              HasSubstr("parameters, expected at most"));
  EXPECT_THAT(invalid(R"({"model_type": "llama", "hidden_size": 100, "num_attention_heads": 12})"),
              HasSubstr("hidden_size: expected a multiple of num_attention_heads 12"));
}

TEST(ConfigErrors, RefuseValuesThatAFamilyCannotHave) {
  EXPECT_THAT(
      invalid(small_json("olmoe", R"("head_dim": 4)")),
      HasSubstr("head_dim: expected hidden_size / num_attention_heads, 12 / 6, the width of "
                "olmoe's norms, got 4"));
  EXPECT_THAT(invalid(small_json("flex_olmo", R"("pad_token_id": 11)")),
              HasSubstr("pad_token_id: expected an id below vocab_size 11, got 11"));
  EXPECT_THAT(invalid(R"({"model_type": "flex_olmo", "vocab_size": 100})"),
              HasSubstr("pad_token_id: expected an id below vocab_size 100, got 100277"));
  for (const char* family : {"flex_olmo", "olmoe"})
    EXPECT_THAT(invalid(small_json(family, R"("num_experts": 0)")),
                HasSubstr("num_experts: expected at least one expert, got 0"));
  for (const char* value : {"0", "-8.0", "1e31", "\"8\""})
    EXPECT_THAT(invalid(small_json("olmoe", std::string(R"("clip_qkv": )") + value)),
                HasSubstr("clip_qkv: expected a number"))
        << value;
  for (const char* key :
       {"attention_multiplier", "embedding_multiplier", "logits_scaling", "residual_multiplier"})
    for (const char* value : {"0", "-1", "null"})
      EXPECT_THAT(invalid(small_json("granitemoe", fmt::format("\"{}\": {}", key, value))),
                  HasSubstr(fmt::format("{}: expected a number", key)));
  EXPECT_THAT(invalid(small_json("granitemoeshared", R"("shared_intermediate_size": -1)")),
              HasSubstr("shared_intermediate_size: expected an integer from 0"));
  EXPECT_THAT(invalid(small_json("granitemoe", R"("num_local_experts": 0)")),
              HasSubstr("num_local_experts: expected at least one expert, got 0"));
}

TEST(ConfigErrors, RefuseWhatChangesTheMaths) {
  const std::pair<const char*, const char*> cases[] = {
      {"llama", R"("hidden_act": "relu")"},
      {"llama", R"("pretraining_tp": 2)"},
      {"llama", R"("partial_rotary_factor": 0.5)"},
      {"llama", R"("quantization_config": {"quant_method": "gptq"})"},
      {"llama", R"("sliding_window": 128)"},
      {"llama", R"("attn_logit_softcapping": 50.0)"},
      {"llama", R"("num_experts": 8)"},
      {"olmoe", R"("sliding_window": 8)"},
      {"olmoe", R"("shared_expert_intermediate_size": 8)"},
      {"olmoe", R"("partial_rotary_factor": 0.5)"},
      {"olmoe", R"("qk_norm": false)"},
      {"olmoe", R"("moe_intermediate_size": 5)"},
      {"olmo2", R"("clip_qkv": 8.0)"},
      {"olmo2", R"("num_experts": 4)"},
      {"olmo2", R"("mlp_bias": true)"},
      {"olmo2", R"("layer_types": ["sliding_attention", "full_attention", "full_attention"])"},
      {"flex_olmo", R"("clip_qkv": 8.0)"},
      {"flex_olmo", R"("routed_scaling_factor": 2.0)"},
      {"flex_olmo", R"("n_group": 2)"},
      {"gpt_oss", R"("hidden_act": "gelu")"},
      {"gpt_oss", R"("experts_per_token": 3)"},
      {"gpt_oss", R"("mlp_bias": true)"},
      {"gpt_oss", R"("norm_topk_prob": true)"},
      {"granitemoe", R"("shared_intermediate_size": 64)"},
      {"granitemoe", R"("num_experts": 5)"},
      {"granitemoe", R"("norm_topk_prob": false)"},
      {"granitemoe", R"("clip_qkv": 8.0)"},
      {"granitemoeshared", R"("position_embedding_type": "nope")"},
      {"granitemoeshared", R"("mlp_bias": true)"},
      {"llama", R"("clip_qkv": 8.0)"},
      {"llama", R"("embedding_multiplier": 12)"},
      {"mixtral", R"("logits_scaling": 8)"},
      {"mixtral", R"("residual_multiplier": 0.22)"},
      {"mixtral", R"("shared_intermediate_size": 64)"},
      {"mistral", R"("attention_bias": true)"},
      {"mixtral", R"("router_jitter_noise": 0.1)"},
      {"mixtral", R"("norm_topk_prob": false)"},
      {"mixtral", R"("mlp_only_layers": [1])"},
      {"qwen3_moe", R"("shared_expert_intermediate_size": 64)"},
      {"dots1", R"("scoring_func": "softmax")"},
      {"dots1", R"("topk_method": "greedy")"},
      {"gpt2", R"("add_cross_attention": true)"},
      {"gpt2", R"("activation_function": "relu")"},
      {"gpt2", R"("num_key_value_heads": 3)"},
      {"gpt2", R"("head_dim": 4)"},
      {"hunyuan_v1_moe", R"("moe_topk": [2, 1, 2])"},
      {"hunyuan_v1_moe", R"("num_experts": [5, 5, 4])"},
      {"hunyuan_v1_moe", R"("moe_intermediate_size": 7)"},
      {"hunyuan_v1_moe", R"("num_shared_expert": [2, 2, 2])"},
      {"hunyuan_v1_moe", R"("norm_topk_prob": false)"},
      {"hunyuan_v1_moe", R"("use_cla": true)"},
      {"hunyuan_v1_moe", R"("group_limited_greedy": true)"},
      {"qwen2_moe", R"("mlp_bias": true)"},
      {"qwen2_moe", R"("scoring_func": "sigmoid")"},
      {"qwen3_moe", R"("mlp_bias": true)"},
      {"qwen3_moe", R"("use_qk_norm": false)"},
      {"qwen3", R"("use_qk_norm": false)"},
      {"qwen3", R"("qk_layernorm": false)"},
      {"llama", R"("use_qk_norm": true)"},
      {"mixtral", R"("qk_norm": true)"},
      {"llama", R"("attention_multiplier": 1.0)"},
      {"llama", R"("query_pre_attn_scalar": 0)"},
      {"llama", R"("is_causal": false)"},
      {"llama", R"("hidden_activation": "gelu_pytorch_tanh")"},
      {"llama", R"("no_rope_layers": [1, 1, 0])"},
      {"llama", R"("rotary_pct": 0.25)"},
      {"llama", R"("scale_depth": 1.4)"},
      {"llama", R"("resid_pdrop": 0.1)"},
      {"llama", R"("use_sliding_window": true)"},
      {"llama", R"("layer_types": ["full_attention", "sliding_attention", "full_attention"])"},
      {"mistral", R"("use_sliding_window": false)"},
      {"mistral", R"("max_window_layers": 2)"},
      {"mistral", R"("pretraining_tp": 2)"},
      {"mistral", R"("layer_types": ["full_attention", "full_attention", "full_attention"])"},
      {"mixtral", R"("decoder_sparse_step": 2)"},
      {"mixtral", R"("moe_intermediate_size": 5)"},
      {"mixtral", R"("n_shared_experts": 1)"},
      {"mixtral", R"("use_sliding_window": true)"},
      {"qwen3_moe", R"("topk_method": "noaux_tc")"},
      {"qwen3_moe", R"("scoring_func": "sigmoid")"},
      {"qwen3_moe", R"("routed_scaling_factor": 2.5)"},
      {"qwen3_moe", R"("first_k_dense_replace": 1)"},
      {"qwen3_moe", R"("router_jitter_noise": 0.1)"},
      {"solar_open", R"("first_k_dense_replace": 1)"},
      {"solar_open", R"("partial_rotary_factor": 0.5)"},
      {"solar_open", R"("use_qk_norm": true)"}};
  for (const auto& [family, member] : cases) {
    const std::string key = std::string(member).substr(1, std::string(member).find('"', 1) - 1);
    EXPECT_THAT(unsupported(small_json(family, member)), HasSubstr("not supported: " + key))
        << member;
  }
}

TEST(ConfigErrors, SayTheValueThatAFamilyIsComputedWith) {
  EXPECT_THAT(
      unsupported(small_json("qwen3_moe", R"("use_qk_norm": false)")),
      HasSubstr("use_qk_norm: expected true, the only value that qwen3_moe is computed with, "
                "got false"));
}

TEST(ConfigErrors, NameRopeParametersThatAreWrong) {
  const auto rope = [](const std::string& object) {
    return small_json("llama", R"("rope_scaling": )" + object);
  };
  EXPECT_THAT(
      unsupported(rope(R"({"type": "longrope", "long_factor": [1]})")),
      HasSubstr("rope_scaling.rope_type: expected default, linear, dynamic, yarn or llama3, "
                "got 'longrope'"));
  EXPECT_THAT(invalid(rope(R"({"type": "linear"})")),
              HasSubstr("rope_scaling.factor: expected a number for rope type linear, got none"));
  EXPECT_THAT(invalid(rope(R"({"rope_type": "llama3", "factor": 8, "low_freq_factor": 4,
                               "high_freq_factor": 1})")),
              HasSubstr("rope_scaling.high_freq_factor: expected more than low_freq_factor 4"));
  EXPECT_THAT(unsupported(rope(R"({"full_attention": {"rope_type": "default"}})")),
              HasSubstr("rope_scaling.full_attention"));
  EXPECT_THAT(invalid(rope(R"("linear")")),
              HasSubstr("rope_scaling: expected an object or null, got \"linear\""));
  EXPECT_THAT(invalid(small_json("llama", R"("rope_theta": 0)")), HasSubstr("rope_theta"));
  EXPECT_THAT(invalid(rope(R"({"type": "linear", "factor": "4"})")),
              HasSubstr("rope_scaling.factor: expected a number, got \"4\""));
}

TEST(ConfigErrors, CheckLayerTypes) {
  EXPECT_THAT(invalid(small_json("qwen3", R"("layer_types": ["full_attention"])")),
              HasSubstr("layer_types: expected 3 entries (num_hidden_layers), got 1"));
  EXPECT_THAT(invalid(small_json("qwen3", R"("layer_types":
                  ["full_attention", "sliding_attention", "full_attention"])")),
              HasSubstr("layer 1 is sliding_attention"));
  EXPECT_THAT(unsupported(small_json("qwen3", R"("layer_types":
                  ["full_attention", "linear_attention", "full_attention"])")),
              HasSubstr("got linear_attention"));
  EXPECT_THAT(invalid(small_json("qwen3_moe", R"("decoder_sparse_step": 0)")),
              HasSubstr("decoder_sparse_step"));
  EXPECT_THAT(invalid(small_json("qwen3_moe", R"("num_experts": 6, "num_local_experts": 8)")),
              HasSubstr("num_experts: expected what num_local_experts says, 8, got 6"));
}

class WeightErrors : public ::testing::Test {
 protected:
  // Writes `map` with values of the config's parameters; returns what the import says.
  std::string import_error(const WeightMap& map) {
    const io::TempDirectory folder;
    const States states = random_states(config_, 3);
    export_weights(map, folder.path(), SaveDType::kSource, values_of(states));
    States got = states;
    return message_of<InvalidArgument>(
        [&] { import_weights(config_, folder.path(), buffers_of(got)); });
  }

  ModelConfig config_ = config_from(small_json("mixtral"));
};

TEST_F(WeightErrors, ListEveryTensorThatDoesNotFit) {
  WeightMap map = make_weight_map(config_);
  map.tensors.erase(map.tensors.begin() + 1);  // model.layers.0.input_layernorm.weight
  map.tensors.back().name = "lm_head.bias";
  map.tensors.front().shape = {12, 11};
  EXPECT_THAT(
      import_error(map),
      AllOf(HasSubstr("4 tensors do not fit"),
            HasSubstr("model.layers.0.input_layernorm.weight: missing, expected shape [12]"),
            HasSubstr("lm_head.weight: missing"), HasSubstr("lm_head.bias: surplus, shape [11,12]"),
            HasSubstr("model.embed_tokens.weight: expected shape [11,12], got [12,11]")));
}

TEST_F(WeightErrors, DoNotAcceptHalfAFusedModel) {
  const std::string name = "model.layers.0.block_sparse_moe.experts.gate_up_proj";
  WeightMap map = make_weight_map(config_);
  WeightMap fused = make_weight_map(config_, 1, DType::kFloat32);
  const auto both = std::find_if(fused.tensors.begin(), fused.tensors.end(),
                                 [&](const FileTensor& tensor) { return tensor.name == name; });
  ASSERT_NE(both, fused.tensors.end());
  map.tensors.push_back(*both);
  EXPECT_THAT(import_error(map),
              AllOf(HasSubstr("1 tensors do not fit"), HasSubstr(name + ": surplus")));
  fused.tensors.erase(both);
  EXPECT_THAT(import_error(fused),
              AllOf(HasSubstr("1 tensors do not fit"), HasSubstr(name + ": missing")));
}

TEST_F(WeightErrors, RefuseIntegersAsWeights) {
  const io::TempDirectory folder;
  const WeightMap map = make_weight_map(config_);
  std::vector<io::TensorInfo> infos;
  for (const FileTensor& tensor : map.tensors)
    infos.push_back({tensor.name, DType::kInt8, tensor.shape});
  io::SafetensorsWriter writer(folder.path(), infos);
  for (const io::TensorInfo& info : infos) {
    std::int64_t count = 1;
    for (const std::int64_t size : info.shape) count *= size;
    writer.write(info.name, std::vector<std::byte>(static_cast<std::size_t>(count)));
  }
  writer.finish();
  EXPECT_THAT(message_of<InvalidArgument>([&] { read_weight_map(config_, folder.path()); }),
              HasSubstr("model.norm.weight: expected dtype F32, BF16, F16 or F64, got I8"));
}

TEST_F(WeightErrors, StopListingAfterAHundred) {
  const ModelConfig large =
      config_from(small_json("mixtral", R"("num_local_experts": 64, "num_hidden_layers": 4)"));
  const io::TempDirectory folder;
  const States states = random_states(config_, 3);
  export_weights(make_weight_map(config_), folder.path(), SaveDType::kSource, values_of(states));
  EXPECT_THAT(message_of<InvalidArgument>([&] { read_weight_map(large, folder.path()); }),
              AllOf(HasSubstr("tensors do not fit"), HasSubstr("\n  ..."),
                    Not(HasSubstr("layers.3.block_sparse_moe"))));
}

}  // namespace
}  // namespace anabatic::model
