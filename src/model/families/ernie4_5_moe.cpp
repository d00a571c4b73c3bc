// SPDX-License-Identifier: Apache-2.0
// ERNIE 4.5: files rotate pairs of columns; experts by softmax with a correction bias, next to
// shared ones.
#include <fmt/core.h>

#include "model/family.h"

namespace anabatic::model {
namespace {

Moe read_ernie_moe(ConfigReader& reader, const CommonFields& fields, bool has_biases) {
  const Range experts{1, Limits::kExperts};
  Moe moe{.activation = fields.activation};
  moe.num_experts = read_either(reader, "moe_num_experts", "num_experts", 64, experts);
  moe.top_k = read_either(reader, "moe_k", "num_experts_per_tok", 6, experts);
  require_enough_experts(reader, "moe_k", moe);
  moe.width = reader.integer("moe_intermediate_size", 1536, {1, Limits::kWidth});
  moe.router.is_saved_in_f32 = true;
  moe.router.form = {.has_bias = true,
                     .normalizes = true,
                     .floor = reader.number("moe_norm_min", 1e-12, 0.0, 1e6)};
  Mlp shared = fields.mlp();
  shared.bias = has_biases;
  shared.width = moe.width * reader.integer("moe_num_shared_experts", 2, {0, Limits::kExperts});
  if (shared.width > 0) moe.shared = SharedExpert{.mlp = shared};
  return moe;
}

// Every moe_layer_interval-th layer from the first index to the last one has experts.
struct SparseLayers {
  std::int64_t first, last, interval;
  bool contain(std::int64_t layer) const {
    return (layer + 1) % interval == 0 && layer >= first && layer <= last;
  }
};

SparseLayers read_sparse_layers(ConfigReader& reader, const CommonFields& fields) {
  const Range any{-1, Limits::kPositions};
  SparseLayers sparse{};
  sparse.first = reader.integer("moe_layer_start_index", 1, any);
  sparse.last = reader.integer("moe_layer_end_index", -1, any);
  if (sparse.last == -1) sparse.last = fields.num_hidden_layers - 1;
  sparse.interval = reader.integer("moe_layer_interval", 1, {1, Limits::kPositions});
  return sparse;
}

Spelling with_bias(const std::string& block, const Spelling& experts) {
  const std::string bias = block + ".moe_statics.e_score_correction_bias";
  Spelling names{{"router.correction_bias", {.tensor = bias, .has_leading_one = true}}};
  names.insert(names.end(), experts.begin(), experts.end());
  return names;
}

void read_ernie4_5_moe(ConfigReader& reader, const CommonFields& fields, ModelConfig& config) {
  Gqa attention = fields.attention();
  attention.rotates_pairs = true;
  Mlp mlp = fields.mlp();
  // All products have one but those of routers and their experts.
  const bool has_biases = reader.has("use_bias") && reader.boolean("use_bias", false);
  attention.qkv_bias = attention.output_bias = mlp.bias = config.spec.head.bias = has_biases;
  const Moe moe = read_ernie_moe(reader, fields, has_biases);
  const SparseLayers sparse = read_sparse_layers(reader, fields);
  config.has_balance_loss = true;
  config.output_router_logits = reader.boolean("output_router_logits", false);
  config.router_aux_loss_coef = reader.number("router_aux_loss_coef", 0.001, 0.0, 1e6);
  // Files without layers of multi-token prediction may name them.
  reader.know({"num_nextn_predict_layers"});
  for (std::int64_t i = 0; i < fields.num_hidden_layers; ++i)
    config.spec.layers.push_back(
        {.attention = attention,
         .feed_forward = sparse.contain(i) ? FeedForward(moe) : FeedForward(mlp)});
  config.spec.spellings =
      with_shared_experts({with_bias("mlp", {}), with_bias("mlp.gate", fused_experts("mlp"))});
}

}  // namespace

const Family kErnie45Moe{.model_type = "ernie4_5_moe",
                         .defaults = {.vocab_size = 103424,
                                      .hidden_size = 2560,
                                      .intermediate_size = 12288,
                                      .num_hidden_layers = 28,
                                      .num_attention_heads = 20,
                                      .num_key_value_heads = 4,
                                      .head_dim = 0,
                                      .max_position_embeddings = 131072,
                                      .rms_norm_eps = 1e-5,
                                      .rope_theta = 500000.0,
                                      .bos_token_id = 1,
                                      .eos_token_id = 2,
                                      .pad_token_id = 0,
                                      .is_tied = true},
                         .read = read_ernie4_5_moe};

}  // namespace anabatic::model
