// SPDX-License-Identifier: Apache-2.0
// Qwen3-MoE: qwen3 attention; layers are sparse by decoder_sparse_step unless mlp_only_layers lists
// them.
#include <algorithm>

#include "model/family.h"

namespace anabatic::model {
namespace {

void read_qwen3_moe(ConfigReader& reader, ModelConfig& config) {
  read_attention_bias(reader, config);
  config.qk_norm = true;
  const bool uses_window = reader.boolean("use_sliding_window", false);
  // Read by older versions of transformers and saved since; every layer has the window or none.
  reader.know({"sliding_window", "max_window_layers"});
  if (uses_window) read_sliding_window(reader, config, 4096);
  read_experts(reader, config, "num_experts", "num_local_experts", 128, 8);
  config.norm_topk_prob = reader.boolean("norm_topk_prob", false);
  config.moe_intermediate_size = reader.integer("moe_intermediate_size", 768, {1, Limits::kWidth});
  const std::int64_t step = reader.integer("decoder_sparse_step", 1, {1, Limits::kPositions});
  const std::vector<std::int64_t> dense =
      reader.integers("mlp_only_layers", {-Limits::kPositions, Limits::kPositions});
  for (std::size_t i = 0; i < config.layer_is_moe.size(); ++i) {
    const auto layer = static_cast<std::int64_t>(i);
    config.layer_is_moe[i] = config.num_experts > 0 && (layer + 1) % step == 0 &&
                             std::find(dense.begin(), dense.end(), layer) == dense.end();
  }
}

}  // namespace

const Family kQwen3Moe{
    .model_type = "qwen3_moe",
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
    .read = read_qwen3_moe,
    .experts =
        ExpertNames{.block = "mlp", .gate = "gate_proj", .up = "up_proj", .down = "down_proj"}};

}  // namespace anabatic::model
