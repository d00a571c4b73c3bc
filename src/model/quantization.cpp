// SPDX-License-Identifier: Apache-2.0
#include "model/quantization.h"

#include <fmt/core.h>

#include <algorithm>

#include "base/json.h"
#include "base/json_edit.h"
#include "base/log.h"

namespace anabatic::model {
namespace {

constexpr const char* kKey = "quantization_config";

// Fields of fp8 that may have one value alone.
const std::vector<std::pair<const char*, Json>>& fp8_fields() {
  static const std::vector<std::pair<const char*, Json>> fields{
      {"fmt", "e4m3"},
      {"activation_scheme", "dynamic"},
      {"expert_dtype", "fp8"},
      {"weight_block_size", Json::array({128, 128})}};
  return fields;
}

constexpr const char* kPackedMethod = "compressed-tensors";
constexpr const char* kPackedIntegers = "pack-quantized";
constexpr const char* kPackedMxfp4 = "mxfp4-pack-quantized";

// Activations in int8 with a scale for each token, found as a model runs.
const Json& int8_tokens() {
  static const Json activations{{"num_bits", 8},
                                {"type", "int"},
                                {"symmetric", true},
                                {"dynamic", true},
                                {"strategy", "token"}};
  return activations;
}
bool are_int8_tokens(const Json& activations) {
  return std::ranges::all_of(int8_tokens().items(), [&](const auto& field) {
    return activations.value(field.key(), Json()) == field.value();
  });
}

// Tensors tell which grid they have. What changes activations is not computed: those of int8 tokens
// stay as they are, which a warning says.
void read_packed(const Json& quantization, ConfigReader& reader) {
  if (const Json format = quantization.value("format", Json());
      format != kPackedIntegers && format != kPackedMxfp4)
    reader.unsupported(fmt::format("{}.format", kKey),
                       fmt::format("expected {} or {}, got {}", kPackedIntegers, kPackedMxfp4,
                                   format.is_null() ? "none" : show_json_briefly(format)));
  const Json groups = quantization.value("config_groups", Json::object());
  for (const auto& [name, group] : groups.items())
    for (const char* key : {"input_activations", "output_activations"}) {
      const Json activations = group.is_object() ? group.value(key, Json()) : Json();
      if (activations.is_null()) continue;
      const std::string place = fmt::format("{}.config_groups.{}.{}", kKey, name, key);
      if (std::string_view(key) == "input_activations" && activations.is_object() &&
          are_int8_tokens(activations))
        log_warning("[config] {}: activations are computed as they are, not in int8", place);
      else
        reader.unsupported(place, "expected null, or int8 a token: weights alone are quantised");
    }
}

}  // namespace

void read_quantization(ConfigReader& reader) {
  const auto node = reader.object(kKey);
  if (!node || node->value().empty()) return;
  const Json& quantization = node->value();
  const Json method = quantization.value("quant_method", Json());
  if (method == kPackedMethod) return read_packed(quantization, reader);
  if (method != "fp8" && method != "mxfp4")
    return reader.unsupported(fmt::format("{}.quant_method", kKey),
                              fmt::format("expected fp8, mxfp4 or {}, got {}", kPackedMethod,
                                          method.is_null() ? "none" : show_json_briefly(method)));
  if (method != "fp8") return;
  for (const auto& [key, only] : fp8_fields())
    if (const Json value = quantization.value(key, only); value != only)
      reader.unsupported(
          fmt::format("{}.{}", kKey, key),
          fmt::format("expected {}, got {}", show_json(only), show_json_briefly(value)));
}

std::string with_mxfp4(const std::string& config) {
  const Json found = parse_json(config).value(kKey, Json());
  if (found.is_object() && found.value("quant_method", Json()) == "mxfp4") return config;
  // Everything but the experts, as OpenAI's files say it.
  const Json quantization{
      {"quant_method", "mxfp4"},
      {"modules_to_not_convert",
       {"model.layers.*.self_attn", "model.layers.*.mlp.router", "model.embed_tokens", "lm_head"}}};
  return with_member(config, kKey, dump_json(quantization));
}

std::string with_packed_weights(const std::string& config, const WeightGrid& grid,
                                bool rounds_activations, const std::vector<std::string>& others) {
  const bool is_float = grid.format == GridFormat::kMxfp4;
  Json weights{{"num_bits", grid.format == GridFormat::kInt8Channel ? 8 : 4},
               {"type", is_float ? "float" : "int"},
               {"symmetric", true},
               {"dynamic", false},
               {"strategy", grid.group > 0 ? "group" : "channel"},
               {"group_size", grid.group > 0 ? Json(grid.group) : Json()}};
  if (is_float) weights["scale_dtype"] = "torch.uint8";
  const Json quantization{{"quant_method", kPackedMethod},
                          {"format", is_float ? kPackedMxfp4 : kPackedIntegers},
                          {"quantization_status", "compressed"},
                          {"config_groups",
                           {{"group_0",
                             {{"targets", {"Linear"}},
                              {"weights", weights},
                              {"input_activations", rounds_activations ? int8_tokens() : Json()},
                              {"output_activations", Json()}}}}},
                          {"ignore", others}};
  return with_member(config, kKey, dump_json(quantization));
}

std::string without_quantization(const std::string& config) {
  const Json json = parse_json(config);
  const auto found = json.find(kKey);
  const bool says_something = found != json.end() && found->is_object() && !found->empty();
  return says_something ? without_member(config, kKey) : config;
}

}  // namespace anabatic::model
