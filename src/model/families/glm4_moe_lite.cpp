// SPDX-License-Identifier: Apache-2.0
// GLM-4.7-Flash: the attention of deepseek_v3, experts as in glm4_moe.
#include <fmt/core.h>

#include <algorithm>

#include "model/families/latent_attention.h"

namespace anabatic::model {
namespace {

// Whether each layer has experts: all but the first, where no mlp_layer_types says so.
std::vector<bool> read_layer_types(ConfigReader& reader, const CommonFields& fields) {
  const auto num_layers = static_cast<std::size_t>(fields.num_hidden_layers);
  std::vector<bool> is_sparse(num_layers, true);
  is_sparse[0] = false;
  const std::vector<std::string> types = reader.strings("mlp_layer_types");
  if (!types.empty() && types.size() != num_layers)
    reader.invalid("mlp_layer_types", fmt::format("expected {} entries (num_hidden_layers), got {}",
                                                  num_layers, types.size()));
  for (std::size_t i = 0; i < std::min(num_layers, types.size()); ++i) {
    if (types[i] != "dense" && types[i] != "sparse")
      reader.unsupported("mlp_layer_types",
                         fmt::format("expected dense or sparse, got {}", types[i]));
    is_sparse[i] = types[i] == "sparse";
  }
  // transformers ignores this name of the same.
  reader.expect("first_k_dense_replace",
                std::find(is_sparse.begin(), is_sparse.end(), true) - is_sparse.begin());
  return is_sparse;
}

void read_glm4_moe_lite(ConfigReader& reader, const CommonFields& fields, ModelConfig& config) {
  Mla attention =
      read_latent_attention(reader, fields, config.spec.rope,
                            {.q_rank = 768, .kv_rank = 512, .nope_dim = 192, .v_dim = 256});
  attention.bias = reader.boolean("attention_bias", false);
  attention.rotates_pairs = reader.boolean("rope_interleave", true);
  const Router router{.form = {.normalizes = true, .scale = 1.8}};
  const Moe moe = read_biased_experts(
      reader, fields, {.num_experts = 64, .top_k = 4, .width = 1536, .router = router}, 1);
  reader.know({"output_router_logits"});  // the model has no loss of routers
  for (const bool is_sparse : read_layer_types(reader, fields))
    config.spec.layers.push_back(
        {.attention = attention,
         .feed_forward = is_sparse ? FeedForward(moe) : FeedForward(fields.mlp())});
  read_mtp_layers(reader, config, {.attention = attention, .feed_forward = moe}, 0);
  config.spec.spellings = with_shared_experts({Spelling{}, fused_experts("mlp")});
}

}  // namespace

const Family kGlm4MoeLite{.model_type = "glm4_moe_lite",
                          .defaults = {.vocab_size = 154880,
                                       .hidden_size = 2048,
                                       .intermediate_size = 10240,
                                       .num_hidden_layers = 47,
                                       .num_attention_heads = 20,
                                       .num_key_value_heads = 20,
                                       .head_dim = 64,
                                       .max_position_embeddings = 202752,
                                       .rms_norm_eps = 1e-5,
                                       .rope_theta = 10000.0,
                                       .bos_token_id = 0,
                                       .eos_token_id = 1,
                                       .head_dim_key = "qk_rope_head_dim"},
                          .read = read_glm4_moe_lite};

}  // namespace anabatic::model
