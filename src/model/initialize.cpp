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
  initialize(config, state, 0, values, seed);
}

void initialize(const ModelConfig& config, std::string_view state, std::int64_t first,
                std::span<float> values, std::uint64_t seed) {
  const Parameter parameter = find_parameter(config, state);
  const std::int64_t end = first + static_cast<std::int64_t>(values.size());
  ANABATIC_REQUIRE(0 <= first && end <= parameter.num_elements(),
                   "[initialize] {}: expected elements within {}, got [{}, {})", state,
                   parameter.num_elements(), first, end);
  if (parameter.kind == ParameterKind::kNorm || parameter.kind == ParameterKind::kBias) {
    std::fill(values.begin(), values.end(), parameter.kind == ParameterKind::kNorm ? 1.0f : 0.0f);
    return;
  }
  const std::uint64_t stream = stream_of(state);
  // Of the embedding's padding row, if any.
  std::int64_t zero_begin = 0, zero_end = 0;
  if (parameter.kind == ParameterKind::kEmbedding && config.pad_token_id >= 0) {
    zero_begin = config.pad_token_id * config.hidden_size;
    zero_end = zero_begin + config.hidden_size;
  }
  for (std::int64_t i = first; i < end; ++i)
    values[static_cast<std::size_t>(i - first)] =
        zero_begin <= i && i < zero_end
            ? 0.0f
            : static_cast<float>(config.initializer_range *
                                 random_normal(seed, stream, static_cast<std::uint64_t>(i)));
}

}  // namespace anabatic::model
