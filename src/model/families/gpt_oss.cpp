// SPDX-License-Identifier: Apache-2.0
// gpt-oss: attention with sinks, biases everywhere, every other layer with a window, and experts
// with a clamped SwiGLU.
#include <fmt/core.h>

#include <algorithm>
#include <limits>

#include "model/family.h"

namespace anabatic::model {
namespace {

constexpr double kSmallestLimit = std::numeric_limits<float>::min(), kLargestLimit = 1e30;

// What transformers takes where a config describes no rope. The base may still be there.
void read_default_rope(ConfigReader& reader, spec::Rope& rope) {
  if (reader.has("rope_parameters") || reader.has("rope_scaling")) return;
  rope.variant = "yarn";
  rope.factor = 32;
  rope.original_max_position = 4096;
  rope.truncate = false;
}

spec::Activation read_clamped_swiglu(ConfigReader& reader, const CommonFields& fields) {
  if (fields.activation.kind != spec::ActivationKind::kSwiglu)
    reader.unsupported("hidden_act", "expected silu, transformers ignores it");
  return {.kind = spec::ActivationKind::kSwigluClamped,
          .alpha = reader.number("swiglu_alpha", 1.702, kSmallestLimit, kLargestLimit),
          .limit = reader.number("swiglu_limit", 7.0, kSmallestLimit, kLargestLimit)};
}

Moe read_gpt_oss_moe(ConfigReader& reader, const CommonFields& fields, ModelConfig& config) {
  Moe moe = read_experts(reader, fields, config, "num_local_experts", "num_experts",
                         {.num_experts = 128, .top_k = 4, .width = fields.intermediate_size});
  require_experts(reader, "num_local_experts", moe);
  moe.activation = read_clamped_swiglu(reader, fields);
  moe.expert_bias = moe.router.bias = true;
  // A softmax over the chosen logits is the share of each in the chosen probabilities.
  moe.router.form.normalizes = true;
  reader.expect("experts_per_token", moe.top_k);
  reader.expect("moe_intermediate_size", fields.intermediate_size);
  reader.expect("decoder_sparse_step", 1);
  return moe;
}

bool slides_by_default(std::int64_t layer, std::int64_t) { return layer % 2 == 0; }

std::vector<std::int64_t> read_windows(ConfigReader& reader, const CommonFields& fields) {
  const std::int64_t window = read_sliding_window(reader, 128);
  const bool has_types = reader.has("layer_types");
  std::vector<std::int64_t> windows = layer_windows(reader, fields, window, 0, slides_by_default);
  if (window == 0 && !has_types)
    reader.invalid("sliding_window", "expected a window, for every other layer has one by default");
  return windows;
}

// Files have in × out matrices, with the columns of gate and up in turn. In MXFP4 they are out ×
// in.
Spelling names(bool is_mxfp4) {
  const std::string experts = "mlp.experts.", end = is_mxfp4 ? "_blocks" : "";
  const FileView gate_up{
      .tensor = experts + "gate_up_proj" + end, .rows_in_turn = 1, .is_transposed = !is_mxfp4};
  const FileView gate_up_bias{.tensor = experts + "gate_up_proj_bias", .rows_in_turn = 1};
  return {
      {"router.weight", {"mlp.router.weight"}},
      {"router.bias", {"mlp.router.bias"}},
      {"experts.gate.weight", gate_up},
      {"experts.up.weight", gate_up},
      {"experts.gate.bias", gate_up_bias},
      {"experts.up.bias", gate_up_bias},
      {"experts.down.weight", {.tensor = experts + "down_proj" + end, .is_transposed = !is_mxfp4}},
      {"experts.down.bias", {experts + "down_proj_bias"}}};
}

void read_gpt_oss(ConfigReader& reader, const CommonFields& fields, ModelConfig& config) {
  read_default_rope(reader, config.spec.rope);
  // What published files call the context of the training before yarn.
  reader.know({"initial_context_length"});
  Gqa attention = fields.attention();
  attention.qkv_bias = attention.output_bias = reader.boolean("attention_bias", true);
  attention.has_sinks = true;
  const Moe moe = read_gpt_oss_moe(reader, fields, config);
  for (const std::int64_t window : read_windows(reader, fields)) {
    attention.window = window;
    config.spec.layers.push_back({.attention = attention, .feed_forward = moe});
  }
  config.spec.spellings = {names(false), names(true)};
}

}  // namespace

const Family kGptOss{.model_type = "gpt_oss",
                     .defaults = {.vocab_size = 201088,
                                  .hidden_size = 2880,
                                  .intermediate_size = 2880,
                                  .num_hidden_layers = 36,
                                  .num_attention_heads = 64,
                                  .num_key_value_heads = 8,
                                  .head_dim = 64,
                                  .max_position_embeddings = 131072,
                                  .rms_norm_eps = 1e-5,
                                  .rope_theta = 150000.0,
                                  .bos_token_id = -1,
                                  .eos_token_id = -1},
                     .read = read_gpt_oss};

}  // namespace anabatic::model
