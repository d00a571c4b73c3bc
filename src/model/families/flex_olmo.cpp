// SPDX-License-Identifier: Apache-2.0
// FlexOlmo: the attention and the norms of OLMo 2, experts in each layer.
#include "model/family.h"

namespace anabatic::model {
namespace {

void read_flex_olmo(ConfigReader& reader, const CommonFields& fields, ModelConfig& config) {
  Gqa attention = fields.attention();
  read_attention_bias(reader, attention);
  attention.qk_norm = QkNorm::kAllHeads;
  Moe moe = read_experts(reader, fields, config, "num_experts", "num_local_experts",
                         {.num_experts = 7, .top_k = 5, .width = fields.intermediate_size}, 0.01);
  require_experts(reader, "num_experts", moe);
  moe.router.form.normalizes = reader.boolean("norm_topk_prob", false);
  reader.expect("decoder_sparse_step", 1);
  reader.expect("moe_intermediate_size", fields.intermediate_size);
  for (std::int64_t i = 0; i < fields.num_hidden_layers; ++i)
    config.spec.layers.push_back(
        {.attention = attention, .feed_forward = moe, .norms = NormPlacement::kAfter});
  config.spec.spellings.push_back(fused_experts("mlp"));
}

}  // namespace

const Family kFlexOlmo{.model_type = "flex_olmo",
                       .defaults = {.vocab_size = 100352,
                                    .hidden_size = 4096,
                                    .intermediate_size = 11008,
                                    .num_hidden_layers = 32,
                                    .num_attention_heads = 32,
                                    .num_key_value_heads = 0,
                                    .head_dim = 0,
                                    .max_position_embeddings = 4096,
                                    .rms_norm_eps = 1e-6,
                                    .rope_theta = 500000.0,
                                    .bos_token_id = -1,
                                    .eos_token_id = 100257,
                                    .pad_token_id = 100277},
                       .read = read_flex_olmo};

}  // namespace anabatic::model
