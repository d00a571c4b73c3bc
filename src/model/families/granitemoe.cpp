// SPDX-License-Identifier: Apache-2.0
// Granite MoE: mixtral with multipliers, and with a shared MLP next to the experts in
// granitemoeshared.
#include <limits>

#include "model/family.h"

namespace anabatic::model {
namespace {

double read_multiplier(ConfigReader& reader, const char* key) {
  return reader.number(key, 1.0, std::numeric_limits<float>::min(), 1e30);
}

// Gate and up of all experts in one tensor, and those of the shared MLP in another.
Spelling fused_tensors(const std::string& router, const std::string& gate_up,
                       const std::string& down) {
  const std::string moe = "block_sparse_moe.", shared = "shared_mlp.";
  return {{"router.weight", {moe + router}},
          {"experts.gate.weight", {moe + gate_up}},
          {"experts.up.weight", {moe + gate_up}},
          {"experts.down.weight", {moe + down}},
          {"shared_expert.gate.weight", {shared + "input_linear.weight"}},
          {"shared_expert.up.weight", {shared + "input_linear.weight"}},
          {"shared_expert.down.weight", {shared + "output_linear.weight"}}};
}

void read_layers(ConfigReader& reader, const CommonFields& fields, std::int64_t shared_width,
                 ModelConfig& config) {
  Gqa attention = fields.attention();
  read_attention_bias(reader, attention);
  attention.softmax_scale = read_multiplier(reader, "attention_multiplier");
  ModelSpec& spec = config.spec;
  spec.embedding_multiplier = read_multiplier(reader, "embedding_multiplier");
  spec.residual_multiplier = read_multiplier(reader, "residual_multiplier");
  spec.logits_divisor = read_multiplier(reader, "logits_scaling");
  Moe moe = read_experts(reader, fields, config, "num_local_experts", nullptr,
                         {.num_experts = 8, .top_k = 2, .width = fields.intermediate_size});
  require_experts(reader, "num_local_experts", moe);
  // A softmax over the chosen logits is the share of each in the chosen probabilities.
  moe.router.form.normalizes = true;
  if (shared_width > 0)
    moe.shared = {.mlp = {.width = shared_width, .activation = fields.activation}};
  reader.expect("num_experts", moe.num_experts);
  reader.expect("decoder_sparse_step", 1);
  reader.expect("moe_intermediate_size", fields.intermediate_size);
  if (!reader.boolean("norm_topk_prob", true))
    reader.unsupported("norm_topk_prob", "expected true, granitemoe's weights add up to 1");
  for (std::int64_t i = 0; i < fields.num_hidden_layers; ++i)
    spec.layers.push_back({.attention = attention, .feed_forward = moe});
  spec.spellings = {
      fused_tensors("router.layer.weight", "input_linear.weight", "output_linear.weight"),
      fused_tensors("router.weight", "experts.gate_up_proj", "experts.down_proj")};
}

void read_granitemoe(ConfigReader& reader, const CommonFields& fields, ModelConfig& config) {
  read_layers(reader, fields, 0, config);
}

void read_granitemoeshared(ConfigReader& reader, const CommonFields& fields, ModelConfig& config) {
  const std::int64_t width = reader.integer("shared_intermediate_size", 0, {0, Limits::kWidth});
  read_layers(reader, fields, width, config);
}

constexpr FamilyDefaults kDefaults{.vocab_size = 32000,
                                   .hidden_size = 4096,
                                   .intermediate_size = 11008,
                                   .num_hidden_layers = 32,
                                   .num_attention_heads = 32,
                                   .num_key_value_heads = 0,
                                   .head_dim = 0,
                                   .max_position_embeddings = 2048,
                                   .rms_norm_eps = 1e-6,
                                   .rope_theta = 10000.0,
                                   .bos_token_id = 1,
                                   .eos_token_id = 2};

}  // namespace

const Family kGraniteMoe{
    .model_type = "granitemoe", .defaults = kDefaults, .read = read_granitemoe};
const Family kGraniteMoeShared{
    .model_type = "granitemoeshared", .defaults = kDefaults, .read = read_granitemoeshared};

}  // namespace anabatic::model
