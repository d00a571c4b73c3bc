// SPDX-License-Identifier: Apache-2.0
// Hunyuan-A13B: norms of heads after the rotation, and in each layer experts by softmax next to a
// shared MLP of the same width.
#include <fmt/core.h>

#include <algorithm>

#include "model/family.h"

namespace anabatic::model {
namespace {

// One number, or a list with the same number for each layer.
std::int64_t read_for_all_layers(ConfigReader& reader, const CommonFields& fields, const char* key,
                                 std::int64_t fallback, Range range) {
  const std::vector<std::int64_t> values = reader.integers(key, range);
  if (values.empty()) return fallback;
  if (values.size() > 1 && std::ssize(values) < fields.num_hidden_layers)
    reader.invalid(key, fmt::format("expected {} entries (num_hidden_layers), got {}",
                                    fields.num_hidden_layers, values.size()));
  const auto other = std::find_if(values.begin(), values.end(),
                                  [&](std::int64_t value) { return value != values[0]; });
  if (other != values.end())
    reader.unsupported(key, fmt::format("expected the same number for each layer, got {} and {}",
                                        values[0], *other));
  return values[0];
}

// Published files have fields that transformers ignores. Values that mean another model are
// refused.
void refuse_other_models(ConfigReader& reader, const CommonFields& fields) {
  const auto expect_number = [&](const char* key, std::int64_t only) {
    const std::int64_t value =
        read_for_all_layers(reader, fields, key, only, {0, Limits::kPositions});
    if (value != only) reader.unsupported(key, fmt::format("expected {}, got {}", only, value));
  };
  const auto expect_flag = [&](const char* key, bool only) {
    if (reader.boolean(key, only) != only)
      reader.unsupported(key, fmt::format("expected {}, got {}", only, !only));
  };
  expect_number("moe_intermediate_size", fields.intermediate_size);
  expect_number("num_shared_expert", 1);
  expect_number("moe_layer_num_skipped", 0);
  expect_number("attention_head_dim", fields.head_dim);
  expect_flag("use_mixed_mlp_moe", true);
  expect_flag("norm_topk_prob", true);
  expect_flag("use_cla", false);
  expect_flag("moe_drop_tokens", false);
  expect_flag("group_limited_greedy", false);
  // Without effect where those are as expected, and the model has no loss of routers.
  reader.know(
      {"n_group", "topk_group", "cla_share_factor", "eod_token_id", "output_router_logits"});
}

Moe read_hunyuan_moe(ConfigReader& reader, const CommonFields& fields) {
  const Range experts{1, Limits::kExperts};
  Moe moe{.width = fields.intermediate_size, .activation = fields.activation};
  const auto either = [&](const char* key, const char* other_key) {
    const std::int64_t other = read_for_all_layers(reader, fields, other_key, 1, experts);
    const std::int64_t value = read_for_all_layers(reader, fields, key, other, experts);
    if (reader.has(other_key) && value != other)
      reader.invalid(key,
                     fmt::format("expected what {} says, {}, got {}", other_key, other, value));
    return value;
  };
  moe.num_experts = either("num_experts", "num_local_experts");
  moe.top_k = either("moe_topk", "num_experts_per_tok");
  if (moe.top_k > moe.num_experts)
    reader.invalid("moe_topk",
                   fmt::format("expected at most {} experts, got {}", moe.num_experts, moe.top_k));
  moe.router.is_saved_in_f32 = true;
  moe.shared = SharedExpert{.mlp = fields.mlp()};
  return moe;
}

Spelling with_own_names(const Spelling& experts) {
  Spelling names{{"router.weight", {"mlp.gate.wg.weight"}},
                 {"attention.q_norm.weight", {"self_attn.query_layernorm.weight"}},
                 {"attention.k_norm.weight", {"self_attn.key_layernorm.weight"}}};
  names.insert(names.end(), experts.begin(), experts.end());
  return names;
}

void read_hunyuan_v1_moe(ConfigReader& reader, const CommonFields& fields, ModelConfig& config) {
  Gqa attention = fields.attention();
  read_attention_bias(reader, attention);
  attention.qk_norm = QkNorm::kHead;
  attention.norms_after_rope = true;
  const Moe moe = read_hunyuan_moe(reader, fields);
  refuse_other_models(reader, fields);
  for (std::int64_t i = 0; i < fields.num_hidden_layers; ++i)
    config.spec.layers.push_back({.attention = attention, .feed_forward = moe});
  config.spec.spellings = with_shared_experts(
      {with_own_names({}), with_own_names(fused_experts("mlp"))}, "mlp.shared_mlp");
}

}  // namespace

const Family kHunyuanV1Moe{.model_type = "hunyuan_v1_moe",
                           .defaults = {.vocab_size = 290943,
                                        .hidden_size = 4096,
                                        .intermediate_size = 11008,
                                        .num_hidden_layers = 32,
                                        .num_attention_heads = 32,
                                        .num_key_value_heads = 0,
                                        .head_dim = 0,
                                        .max_position_embeddings = 2048,
                                        .rms_norm_eps = 1e-5,
                                        .rope_theta = 10000.0,
                                        .bos_token_id = 1,
                                        .eos_token_id = 2,
                                        .pad_token_id = 0,
                                        .has_rope_alpha = true},
                           .read = read_hunyuan_v1_moe};

}  // namespace anabatic::model
