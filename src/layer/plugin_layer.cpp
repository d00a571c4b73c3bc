// SPDX-License-Identifier: Apache-2.0
#include "layer/plugin_layer.h"

#include <algorithm>
#include <map>
#include <memory>
#include <mutex>

#include "base/error.h"
#include "layer/layer_builder.h"
#include "plugin/plugin_attributes.h"

namespace anabatic::layer {
namespace {

struct PluginLayer {
  explicit PluginLayer(const plugin::PluginOp& op) {
    for (const plugin::OperandSpec& input : op.inputs())
      operands.push_back({.name = input.name,
                          .ndim = static_cast<int>(input.shape.size()),
                          .kind = input.dtypes == ANABATIC_DTYPE_BIT(ANABATIC_I32)
                                      ? OperandKind::kInteger
                                      : OperandKind::kFloat,
                          .has_gradient = input.has_gradient() && op.has_gradient()});
    for (const auto& [key, value] : op.defaults()) attributes.push_back(key);
    row = {.name = op.name(),
           .operands = operands,
           .attributes = attributes,
           .build = decltype(row.build)::bind<&build>(op)};
  }

  static void build(const plugin::PluginOp& op, LayerBuilder& builder);

  std::vector<OperandRow> operands;
  std::vector<std::string_view> attributes;
  LayerRow row{};
};

LayerDtype output_dtype(const LayerBuilder& builder, DType dtype) {
  if (dtype == DType::kFloat32 || dtype == DType::kFloat64) return LayerDtype::kFloat32;
  if (dtype == DType::kBFloat16) return LayerDtype::kBFloat16;
  if (dtype == DType::kInt32) return LayerDtype::kInt32;
  builder.fail("expected results in f32, bf16 or i32, got " + std::string(to_string(dtype)));
}

// The size of a dimension by its name.
std::int64_t size_of(const plugin::PluginOp& op, const LayerBuilder& builder,
                     std::string_view dim) {
  for (const plugin::OperandSpec& input : op.inputs())
    for (std::size_t axis = 0; axis < input.shape.size(); ++axis)
      if (input.shape[axis] == dim) return builder.dim(input.name, static_cast<std::int64_t>(axis));
  ANABATIC_CHECK(false, "[{}] no dimension {}", op.name(), dim);
}

void PluginLayer::build(const plugin::PluginOp& op, LayerBuilder& builder) {
  builder.begin("plugin");
  std::vector<ir::ValueId> inputs;
  for (const plugin::OperandSpec& input : op.inputs()) {
    inputs.push_back(input.kind == ANABATIC_WEIGHT ? builder.vector(input.name)
                                                   : builder.input(input.name));
    if (!input.below.empty())
      builder.limit(input.name, {.low = 0, .high = size_of(op, builder, input.below) - 1});
  }
  spec::Attributes attributes;
  for (const auto& [key, text] : builder.signature().attributes)
    attributes[key] = plugin::attribute_of(op.defaults().find(key)->second, text,
                                           fmt::format("[{}] attribute '{}'", op.name(), key));
  const std::vector<ir::ValueId> outputs =
      builder.outputs_of(op.name(), std::move(inputs), std::move(attributes));
  for (std::size_t i = 0; i < outputs.size(); ++i)
    builder.output(outputs[i], op.outputs()[i].name,
                   output_dtype(builder, builder.type(outputs[i]).dtype));
}

}  // namespace

const LayerRow& plugin_row(const plugin::PluginOp& op) {
  static std::mutex mutex;
  static auto& rows = *new std::map<const plugin::PluginOp*, std::unique_ptr<PluginLayer>>;
  const std::lock_guard lock(mutex);
  std::unique_ptr<PluginLayer>& row = rows[&op];
  if (!row) row = std::make_unique<PluginLayer>(op);
  return row->row;
}

}  // namespace anabatic::layer
