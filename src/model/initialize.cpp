// SPDX-License-Identifier: Apache-2.0
#include "model/initialize.h"

#include <algorithm>
#include <charconv>

#include "base/error.h"
#include "base/philox.h"
#include "model/parameters.h"

namespace anabatic::model {
namespace {

// FNV-1a, 64 bits.
std::uint64_t stream_of(std::string_view name) {
  std::uint64_t hash = 0xCBF29CE484222325u;
  for (const char c : name) hash = (hash ^ static_cast<unsigned char>(c)) * 0x100000001B3u;
  return hash;
}

Parameter find_parameter(const ModelConfig& config, std::string_view state) {
  constexpr std::string_view kLayers = "layers.";
  std::vector<Parameter> candidates;
  if (state.substr(0, kLayers.size()) == kLayers) {
    std::int64_t layer = -1;
    const std::string_view rest = state.substr(kLayers.size());
    std::from_chars(rest.data(), rest.data() + rest.size(), layer);
    if (layer >= 0 && layer < config.num_hidden_layers)
      candidates = layer_parameters(config, layer);
  } else {
    ModelConfig outside = config;
    outside.num_hidden_layers = 0;
    candidates = parameters(outside);
  }
  for (Parameter& parameter : candidates)
    if (parameter.name == state) return std::move(parameter);
  throw InvalidArgument(
      fmt::format("[initialize] {} has no parameter {}", config.model_type, state));
}

}  // namespace

void initialize(const ModelConfig& config, std::string_view state, std::span<float> values,
                std::uint64_t seed) {
  const Parameter parameter = find_parameter(config, state);
  ANABATIC_REQUIRE(static_cast<std::int64_t>(values.size()) == parameter.num_elements(),
                   "[initialize] {}: expected {} values, got {}", state, parameter.num_elements(),
                   values.size());
  if (parameter.kind == ParameterKind::kNorm || parameter.kind == ParameterKind::kBias) {
    std::fill(values.begin(), values.end(), parameter.kind == ParameterKind::kNorm ? 1.0f : 0.0f);
    return;
  }
  const std::uint64_t stream = stream_of(state);
  for (std::size_t i = 0; i < values.size(); ++i)
    values[i] = static_cast<float>(config.initializer_range * random_normal(seed, stream, i));
  if (parameter.kind == ParameterKind::kEmbedding && config.pad_token_id >= 0) {
    const auto width = static_cast<std::size_t>(config.hidden_size);
    const std::span<float> row =
        values.subspan(static_cast<std::size_t>(config.pad_token_id) * width, width);
    std::fill(row.begin(), row.end(), 0.0f);
  }
}

}  // namespace anabatic::model
