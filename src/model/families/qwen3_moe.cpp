// SPDX-License-Identifier: Apache-2.0
// Qwen3-MoE: qwen3 attention; layers are sparse by decoder_sparse_step unless mlp_only_layers lists
// them.
#include "model/family.h"

namespace anabatic::model {
namespace {

void read_qwen3_moe(ConfigReader& reader, const CommonFields& fields, ModelConfig& config) {
  Gqa attention = fields.attention();
  read_attention_bias(reader, attention);
  attention.qk_norm = QkNorm::kHead;
  const bool uses_window = reader.boolean("use_sliding_window", false);
  // Files have both fields, but max_window_layers has no effect: all layers have the window or
  // none.
  reader.know({"sliding_window", "max_window_layers"});
  if (uses_window) attention.window = read_sliding_window(reader, 4096);
  Moe moe = read_experts(reader, fields, config, "num_experts", "num_local_experts",
                         {.num_experts = 128, .top_k = 8});
  moe.router.form.normalizes = reader.boolean("norm_topk_prob", false);
  moe.width = reader.integer("moe_intermediate_size", 768, {1, Limits::kWidth});
  for (const bool is_sparse : read_sparse_layers(reader, fields, moe))
    config.spec.layers.push_back(
        {.attention = attention,
         .feed_forward = is_sparse ? FeedForward(moe) : FeedForward(fields.mlp())});
  config.spec.spellings.push_back(fused_experts("mlp"));
}

}  // namespace

const Family kQwen3Moe{.model_type = "qwen3_moe",
                       .defaults = {.vocab_size = 151936,
                                    .hidden_size = 2048,
                                    .intermediate_size = 6144,
                                    .num_hidden_layers = 24,
                                    .num_attention_heads = 32,
                                    .num_key_value_heads = 4,
                                    .head_dim = 0,
                                    .max_position_embeddings = 32768,
                                    .rms_norm_eps = 1e-6,
                                    .rope_theta = 10000.0,
                                    .bos_token_id = -1,
                                    .eos_token_id = -1},
                       .read = read_qwen3_moe};

}  // namespace anabatic::model
