// SPDX-License-Identifier: Apache-2.0
#include "layer/layer_table.h"

#include <algorithm>
#include <optional>
#include <string>
#include <vector>

#include "base/error.h"
#include "base/text.h"
#include "layer/layer_builder.h"
#include "layer/layers/layers.h"
#include "layer/plugin_layer.h"

namespace anabatic::layer {
namespace {

using enum OperandKind;

constexpr OperandRow kAddOperands[] = {{"a", 2}, {"b", 2}};
constexpr OperandRow kAddRmsNormOperands[] = {{"x", 2}, {"weight", 1}, {"residual", 2}};
constexpr OperandRow kAttentionOperands[] = {{"q", 2},
                                             {"k", 2},
                                             {"v", 2},
                                             {"key_begin", 1, kInteger},
                                             {"key_end", 1, kInteger},
                                             {"sinks", 1, kFloat, true}};
constexpr OperandRow kCastOperands[] = {{"x", 2}};
constexpr OperandRow kGatedMlpOperands[] = {{"x", 2}, {"gate", 2}, {"up", 2}, {"down", 2}};
constexpr OperandRow kGroupedLinearOperands[] = {{"x", 2}, {"weight", 3}, {"offsets", 1, kInteger}};
constexpr OperandRow kLinearOperands[] = {{"x", 2}, {"weight", 2}};
constexpr OperandRow kLinearCrossEntropyOperands[] = {
    {"x", 2}, {"weight", 2}, {"labels", 1, kInteger}, {"scale", 0, kFloat32, false, false}};
constexpr OperandRow kMlpOperands[] = {{"x", 2}, {"gate_up", 2}, {"down", 2}};
constexpr OperandRow kMoeExpertsOperands[] = {{"x", 2},
                                              {"gate_up", 3},
                                              {"down", 3},
                                              {"index", 2, kInteger},
                                              {"weights", 2},
                                              {"gate_bias", 2, kFloat, true},
                                              {"up_bias", 2, kFloat, true},
                                              {"down_bias", 2, kFloat, true}};
constexpr OperandRow kRmsNormOperands[] = {{"x", 2}, {"weight", 1}};
constexpr OperandRow kRopeOperands[] = {{"x", 2}, {"table", 2, kFloat32, false, false}};
constexpr OperandRow kSwigluOperands[] = {{"gate", 2}, {"up", 2}};

constexpr std::string_view kNormAttributes[] = {"epsilon", "output"};
constexpr std::string_view kRmsNormAttributes[] = {"epsilon", "heads", "output"};
constexpr std::string_view kAttentionAttributes[] = {"num_heads", "num_kv_heads", "products",
                                                     "scale", "window"};
constexpr std::string_view kCastAttributes[] = {"output"};
constexpr std::string_view kProductAttributes[] = {"products"};
constexpr std::string_view kFeedForwardAttributes[] = {"activation", "alpha", "limit", "products"};
constexpr std::string_view kExpertsAttributes[] = {"activation", "alpha", "limit", "products",
                                                   "stacks"};
constexpr std::string_view kRegionAttributes[] = {"nodes", "outputs", "products"};
constexpr std::string_view kRopeAttributes[] = {"head_dim"};
constexpr std::string_view kActivationAttributes[] = {"activation", "alpha", "limit"};

// Alphabetical.
constexpr LayerRow kLayers[] = {
    {"add", kAddOperands, {}, add},
    {"add_rms_norm", kAddRmsNormOperands, kNormAttributes, add_rms_norm},
    {"attention", kAttentionOperands, kAttentionAttributes, attention},
    {"cast", kCastOperands, kCastAttributes, cast},
    {"gated_mlp", kGatedMlpOperands, kFeedForwardAttributes, gated_mlp},
    {"grouped_linear", kGroupedLinearOperands, kProductAttributes, grouped_linear},
    {"linear", kLinearOperands, kProductAttributes, linear},
    {"linear_cross_entropy", kLinearCrossEntropyOperands, kProductAttributes, linear_cross_entropy},
    {"mlp", kMlpOperands, kFeedForwardAttributes, mlp},
    {"moe_experts", kMoeExpertsOperands, kExpertsAttributes, moe_experts},
    {"region", {}, kRegionAttributes, region, true},
    {"rms_norm", kRmsNormOperands, kRmsNormAttributes, rms_norm},
    {"rope", kRopeOperands, kRopeAttributes, rope},
    {"swiglu", kSwigluOperands, kActivationAttributes, swiglu},
};

template <class List, class Name>
std::string hint(std::string_view word, const List& list, const Name& name) {
  std::vector<std::string> words;
  for (const auto& entry : list) words.emplace_back(name(entry));
  const std::optional<std::string> nearest = nearest_word(word, words);
  if (nearest) return fmt::format("; did you mean '{}'?", *nearest);
  std::string all;
  for (const std::string& known : words) all += (all.empty() ? "" : ", ") + known;
  return fmt::format("; there are {}", all);
}

bool is_of_kind(LayerDtype dtype, OperandKind kind) {
  switch (kind) {
    case kFloat:
      return dtype == LayerDtype::kFloat32 || dtype == LayerDtype::kBFloat16;
    case kFloat32:
      return dtype == LayerDtype::kFloat32;
    case kInteger:
      break;
  }
  return dtype == LayerDtype::kInt32 || dtype == LayerDtype::kInt64;
}

std::string_view words_of(OperandKind kind) {
  switch (kind) {
    case kFloat:
      return "f32 or bf16";
    case kFloat32:
      return "f32";
    case kInteger:
      break;
  }
  return "i32 or i64";
}

void check_sizes(const LayerRow& row, const LayerTensor& given) {
  for (const std::int64_t size : given.shape)
    ANABATIC_REQUIRE(size >= 0, "[{}] expected sizes of at least 0 in {}, got {}", row.name,
                     given.name, size);
  (void)to_type(given).num_bytes();  // refuses an overflow
}

void check_operand(const LayerRow& row, const OperandRow& wanted, const LayerTensor& given) {
  const TensorType type = to_type(given);
  ANABATIC_REQUIRE(is_of_kind(given.dtype, wanted.kind), "[{}] expected {} in {}, got {}", row.name,
                   wanted.name, words_of(wanted.kind), to_string(type));
  ANABATIC_REQUIRE(std::ssize(given.shape) == wanted.ndim,
                   "[{}] expected {} of {} dimensions, got {}", row.name, wanted.name, wanted.ndim,
                   to_string(type));
  check_sizes(row, given);
}

// The function of the layer checks the rest.
void check_any_operands(const LayerRow& row, const LayerSignature& signature) {
  ANABATIC_REQUIRE(!signature.inputs.empty(), "[{}] expected operands, got none", row.name);
  for (const LayerTensor& given : signature.inputs) check_sizes(row, given);
  for (const std::string& wanted : signature.gradients) {
    const auto found = std::ranges::find(signature.inputs, wanted, &LayerTensor::name);
    ANABATIC_REQUIRE(found != signature.inputs.end() && is_of_kind(found->dtype, kFloat),
                     "[{}] expected gradients of floating operands, got '{}'", row.name, wanted);
  }
}

void check_operands(const LayerRow& row, const LayerSignature& signature) {
  const auto name = [](const auto& entry) { return entry.name; };
  auto given = signature.inputs.begin();
  for (const OperandRow& wanted : row.operands) {
    if (given != signature.inputs.end() && given->name == wanted.name) {
      check_operand(row, wanted, *given++);
      continue;
    }
    ANABATIC_REQUIRE(wanted.is_optional, "[{}] expected operand '{}', got {}", row.name,
                     wanted.name,
                     given == signature.inputs.end() ? "none" : fmt::format("'{}'", given->name));
  }
  ANABATIC_REQUIRE(given == signature.inputs.end(), "[{}] unknown operand '{}'{}", row.name,
                   given->name, hint(given->name, row.operands, name));
  for (const std::string& wanted : signature.gradients) {
    const auto found = std::ranges::find(signature.inputs, wanted, &LayerTensor::name);
    ANABATIC_REQUIRE(found != signature.inputs.end(),
                     "[{}] expected gradients of operands, got '{}'{}", row.name, wanted,
                     hint(wanted, signature.inputs, name));
    const auto operand = std::ranges::find(row.operands, wanted, &OperandRow::name);
    ANABATIC_REQUIRE(operand->kind != kInteger && operand->has_gradient,
                     "[{}] expected gradients of operands that have one, got '{}'", row.name,
                     wanted);
  }
  for (const std::string& packed : signature.packed)
    ANABATIC_REQUIRE(
        std::ranges::find(signature.inputs, packed, &LayerTensor::name) != signature.inputs.end(),
        "[{}] expected packings of operands, got '{}'{}", row.name, packed,
        hint(packed, signature.inputs, name));
}

}  // namespace

std::span<const LayerRow> layer_table() { return kLayers; }

const LayerRow& checked_row(const LayerSignature& signature, const plugin::PluginSet& plugins) {
  const auto* row = std::ranges::find(kLayers, signature.layer, &LayerRow::name);
  if (const plugin::PluginOp* op = plugins.find(signature.layer);
      row == std::end(kLayers) && op != nullptr)
    row = &plugin_row(*op);
  ANABATIC_REQUIRE(
      row != std::end(kLayers), "[layers] unknown layer '{}'{}", signature.layer,
      hint(signature.layer, kLayers, [](const LayerRow& entry) { return entry.name; }));
  for (const auto& [key, value] : signature.attributes)
    ANABATIC_REQUIRE(
        std::ranges::find(row->attributes, key) != row->attributes.end(),
        "[{}] unknown attribute '{}' = '{}'{}", row->name, key, value,
        hint(key, row->attributes, [](std::string_view attribute) { return attribute; }));
  if (row->takes_any_operands)
    check_any_operands(*row, signature);
  else
    check_operands(*row, signature);
  return *row;
}

}  // namespace anabatic::layer
