// SPDX-License-Identifier: Apache-2.0
// The dense families: llama, and its near variants mistral (window) and qwen3 (norm of queries and
// keys, windows in some layers).
#include <fmt/core.h>

#include <algorithm>

#include "model/family.h"

namespace anabatic::model {
namespace {

void read_llama(ConfigReader& reader, ModelConfig& config) {
  read_attention_bias(reader, config);
  config.mlp_bias = reader.boolean("mlp_bias", false);
  if (const auto shards = reader.optional_integer("pretraining_tp", 1, {0, Limits::kHeads});
      shards.value_or(1) > 1)
    reader.unsupported("pretraining_tp", fmt::format("expected 1, got {}", *shards));
}

void read_mistral(ConfigReader& reader, ModelConfig& config) {
  read_sliding_window(reader, config, 4096);
}

// Explicit `layer_types` say which layers have the window; else it begins at max_window_layers.
void read_qwen3(ConfigReader& reader, ModelConfig& config) {
  read_attention_bias(reader, config);
  config.qk_norm = true;
  const bool uses_window = reader.boolean("use_sliding_window", false);
  const std::int64_t first_window =
      reader.integer("max_window_layers", 28, {0, Limits::kPositions});
  reader.know({"sliding_window"});
  if (uses_window) read_sliding_window(reader, config, 4096);
  const std::vector<std::string> types = reader.strings("layer_types");
  const std::size_t num_layers = config.layer_has_window.size();
  for (std::size_t i = 0; i < num_layers; ++i)
    config.layer_has_window[i] =
        config.sliding_window > 0 && static_cast<std::int64_t>(i) >= first_window;
  if (types.empty()) return;
  if (types.size() != num_layers) {
    reader.invalid("layer_types", fmt::format("expected {} entries (num_hidden_layers), got {}",
                                              num_layers, types.size()));
    return;
  }
  for (std::size_t i = 0; i < num_layers; ++i) {
    const bool slides = types[i] == "sliding_attention";
    if (!slides && types[i] != "full_attention") {
      reader.unsupported(
          "layer_types",
          fmt::format("expected full_attention or sliding_attention, got {}", types[i]));
      return;
    }
    if (slides && config.sliding_window == 0) {
      reader.invalid("layer_types",
                     fmt::format("layer {} is sliding_attention, expected use_sliding_window true "
                                 "and a sliding_window",
                                 i));
      return;
    }
    config.layer_has_window[i] = slides;
  }
}

}  // namespace

std::span<const Family> llama_families() {
  static const Family families[] = {{.model_type = "llama",
                                     .defaults = {.vocab_size = 32000,
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
                                                  .eos_token_id = 2},
                                     .read = read_llama},
                                    {.model_type = "mistral",
                                     .defaults = {.vocab_size = 32000,
                                                  .hidden_size = 4096,
                                                  .intermediate_size = 14336,
                                                  .num_hidden_layers = 32,
                                                  .num_attention_heads = 32,
                                                  .num_key_value_heads = 8,
                                                  .head_dim = 0,
                                                  .max_position_embeddings = 131072,
                                                  .rms_norm_eps = 1e-6,
                                                  .rope_theta = 10000.0,
                                                  .bos_token_id = 1,
                                                  .eos_token_id = 2},
                                     .read = read_mistral},
                                    {.model_type = "qwen3",
                                     .defaults = {.vocab_size = 151936,
                                                  .hidden_size = 4096,
                                                  .intermediate_size = 22016,
                                                  .num_hidden_layers = 32,
                                                  .num_attention_heads = 32,
                                                  .num_key_value_heads = 32,
                                                  .head_dim = 128,
                                                  .max_position_embeddings = 32768,
                                                  .rms_norm_eps = 1e-6,
                                                  .rope_theta = 10000.0,
                                                  .bos_token_id = -1,
                                                  .eos_token_id = -1},
                                     .read = read_qwen3}};
  return families;
}

}  // namespace anabatic::model
