// SPDX-License-Identifier: Apache-2.0
// Qwen2-MoE: qwen2 attention; in sparse layers a gated shared expert next to the chosen ones.
#include "model/family.h"

namespace anabatic::model {
namespace {

void read_qwen2_moe(ConfigReader& reader, const CommonFields& fields, ModelConfig& config) {
  Gqa attention = fields.attention();
  attention.qkv_bias = reader.boolean("qkv_bias", true);
  Moe moe = read_experts(reader, fields, config, "num_experts", "num_local_experts",
                         {.num_experts = 60, .top_k = 4});
  moe.router.form.normalizes = reader.boolean("norm_topk_prob", false);
  moe.width = reader.integer("moe_intermediate_size", 1408, {1, Limits::kWidth});
  Mlp shared = fields.mlp();
  shared.width = reader.integer("shared_expert_intermediate_size", 5632, {1, Limits::kWidth});
  moe.shared = SharedExpert{.mlp = shared, .is_gated = true};
  const std::vector<bool> is_sparse = read_sparse_layers(reader, fields, moe);
  const auto slides = [](std::int64_t layer, std::int64_t first_full) {
    return layer % 2 == 0 && layer < first_full;
  };
  for (const std::int64_t window : read_layer_windows(reader, fields, slides)) {
    attention.window = window;
    const bool has_experts = is_sparse[config.spec.layers.size()];
    config.spec.layers.push_back(
        {.attention = attention,
         .feed_forward = has_experts ? FeedForward(moe) : FeedForward(fields.mlp())});
  }
  config.spec.spellings.push_back(fused_experts("mlp"));
}

}  // namespace

const Family kQwen2Moe{.model_type = "qwen2_moe",
                       .defaults = {.vocab_size = 151936,
                                    .hidden_size = 2048,
                                    .intermediate_size = 5632,
                                    .num_hidden_layers = 24,
                                    .num_attention_heads = 16,
                                    .num_key_value_heads = 16,
                                    .head_dim = 0,
                                    .max_position_embeddings = 32768,
                                    .rms_norm_eps = 1e-6,
                                    .rope_theta = 10000.0,
                                    .bos_token_id = -1,
                                    .eos_token_id = -1},
                       .read = read_qwen2_moe};

}  // namespace anabatic::model
