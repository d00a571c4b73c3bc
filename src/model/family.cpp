// SPDX-License-Identifier: Apache-2.0
#include "model/family.h"

#include <fmt/core.h>

#include <algorithm>
#include <array>

namespace anabatic::model {

std::span<const Family* const> families() {
  static constexpr std::array kFamilies{&kLlama, &kMistral, &kMixtral,
                                        &kQwen2, &kQwen3,   &kQwen3Moe};
  return kFamilies;
}

const Family* find_family(std::string_view model_type) {
  for (const Family* family : families())
    if (family->model_type == model_type) return family;
  return nullptr;
}

void read_sliding_window(ConfigReader& reader, ModelConfig& config, std::int64_t fallback) {
  config.sliding_window =
      reader
          .optional_integer("sliding_window", fallback > 0 ? std::optional(fallback) : std::nullopt,
                            {1, Limits::kPositions})
          .value_or(0);
  std::fill(config.layer_has_window.begin(), config.layer_has_window.end(),
            config.sliding_window > 0);
}

void read_attention_bias(ConfigReader& reader, ModelConfig& config) {
  config.attention_bias = config.attention_output_bias = reader.boolean("attention_bias", false);
}

void read_experts(ConfigReader& reader, ModelConfig& config, const char* key, const char* other_key,
                  std::int64_t num_experts, std::int64_t num_experts_per_tok) {
  const Range range{0, Limits::kExperts};
  const auto other = reader.optional_integer(other_key, std::nullopt, range);
  const bool both = reader.has(key) && reader.has(other_key);
  config.num_experts = reader.integer(key, other.value_or(num_experts), range);
  if (both && other && *other != config.num_experts)
    reader.invalid(key, fmt::format("expected what {} says, {}, got {}", other_key, *other,
                                    config.num_experts));
  config.num_experts_per_tok =
      reader.integer("num_experts_per_tok", num_experts_per_tok, {1, Limits::kExperts});
  if (config.num_experts > 0 && config.num_experts_per_tok > config.num_experts)
    reader.invalid("num_experts_per_tok",
                   fmt::format("expected at most {} experts, got {}", config.num_experts,
                               config.num_experts_per_tok));
  config.output_router_logits = reader.boolean("output_router_logits", false);
  config.router_aux_loss_coef = reader.number("router_aux_loss_coef", 0.001, 0.0, 1e6);
}

void read_layer_windows(ConfigReader& reader, ModelConfig& config) {
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

}  // namespace anabatic::model
