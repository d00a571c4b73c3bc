// SPDX-License-Identifier: Apache-2.0
// MiniMax-M2: a norm of queries and of keys over all heads, and a sigmoid router with a correction
// bias in every layer.
#include <fmt/core.h>

#include "model/family.h"

namespace anabatic::model {
namespace {

// Files have `rotary_dim`; transformers writes the factor that it stands for.
void read_rotary_dim(ConfigReader& reader, const CommonFields& fields, spec::Rope& rope) {
  const auto columns = reader.optional_integer("rotary_dim", std::nullopt, {2, fields.head_dim});
  if (!columns) return;
  const bool has_factor = rope.rotary_dim != fields.head_dim;
  if (has_factor && *columns != rope.rotary_dim)
    reader.invalid("rotary_dim",
                   fmt::format("expected the {} columns that partial_rotary_factor says, got {}",
                               rope.rotary_dim, *columns));
  if (*columns % 2 != 0)
    reader.invalid("rotary_dim", fmt::format("expected an even number, got {}", *columns));
  rope.rotary_dim = *columns / 2 * 2;
}

Spelling names(const std::string& block, const Spelling& experts) {
  Spelling all{{"router.correction_bias", {block + ".e_score_correction_bias"}}};
  all.insert(all.end(), experts.begin(), experts.end());
  return all;
}

void read_minimax_m2(ConfigReader& reader, const CommonFields& fields, ModelConfig& config) {
  Gqa attention = fields.attention();
  attention.qk_norm = QkNorm::kAllHeads;
  read_rotary_dim(reader, fields, config.spec.rope);
  Moe moe = read_experts(reader, fields, config, "num_local_experts", "num_experts",
                         {.num_experts = 256, .top_k = 8, .width = fields.intermediate_size});
  require_experts(reader, "num_local_experts", moe);
  moe.router.form = {.score = spec::RouterScore::kSigmoid, .has_bias = true, .normalizes = true};
  if (reader.number("router_jitter_noise", 0.0, 0.0, 1.0) > 0)
    reader.unsupported("router_jitter_noise", "expected 0, got noise in training");
  if (!reader.boolean("use_qk_norm", true))
    reader.unsupported("use_qk_norm", "expected true, transformers ignores it");
  for (std::int64_t i = 0; i < fields.num_hidden_layers; ++i)
    config.spec.layers.push_back({.attention = attention, .feed_forward = moe});
  config.spec.spellings.clear();
  for (const char* block : {"block_sparse_moe", "mlp"}) {
    config.spec.spellings.push_back(names(block, numbered_experts(block)));
    config.spec.spellings.push_back(names(block, fused_experts(block)));
  }
}

}  // namespace

const Family kMinimaxM2{.model_type = "minimax_m2",
                        .defaults = {.vocab_size = 200064,
                                     .hidden_size = 3072,
                                     .intermediate_size = 1536,
                                     .num_hidden_layers = 62,
                                     .num_attention_heads = 48,
                                     .num_key_value_heads = 8,
                                     .head_dim = 128,
                                     .max_position_embeddings = 196608,
                                     .rms_norm_eps = 1e-6,
                                     .rope_theta = 5000000.0,
                                     .bos_token_id = 200034,
                                     .eos_token_id = 200020,
                                     .partial_rotary_factor = 1.0},
                        .read = read_minimax_m2};

}  // namespace anabatic::model
