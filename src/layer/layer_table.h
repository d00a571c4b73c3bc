// SPDX-License-Identifier: Apache-2.0
// The layers: operands, attributes, and the function that builds the graph. One row each.
#pragma once
#include <cstdint>
#include <span>
#include <string_view>

#include "anabatic/layers.h"
#include "base/function.h"
#include "plugin/plugin_set.h"

namespace anabatic::layer {

class LayerBuilder;

// The attribute of layers with products: bf16 or fp32.
inline constexpr std::string_view kProducts = "products";

enum class OperandKind : std::uint8_t {
  kFloat,  // f32 or bf16
  kFloat32,
  kInteger  // i32 or i64
};

struct OperandRow {
  std::string_view name;
  int ndim = 0;
  OperandKind kind = OperandKind::kFloat;
  bool is_optional = false;
  bool has_gradient = true;  // of a float
};

struct LayerRow {
  std::string_view name;
  std::span<const OperandRow> operands;
  std::span<const std::string_view> attributes;
  Function<void(LayerBuilder& builder)> build;
  bool takes_any_operands = false;  // the function checks them
};

std::span<const LayerRow> layer_table();

// The row of a signature whose operands, dtypes, dimensions and attributes are those of its layer,
// operands in the row's order. An op of a plugin is a layer too. InvalidArgument naming what
// differs.
const LayerRow& checked_row(const LayerSignature& signature, const plugin::PluginSet& plugins = {});

}  // namespace anabatic::layer
