// SPDX-License-Identifier: Apache-2.0
#include "analysis/saved_form.h"

#include <algorithm>
#include <array>
#include <string>
#include <string_view>

#include "ir/op_schema.h"

namespace anabatic::analysis {
namespace {

constexpr std::array<std::string_view, 15> kActivations{
    "activation",  "add",       "add_rms_norm", "clamp",      "embedding",
    "expert_bias", "gate_rows", "join_heads",   "layer_norm", "permute",
    "rms_norm",    "rope",      "rope_pair",    "scale",      "unpermute"};

bool makes_activation(const ir::Graph& graph, const ir::Node& node, ir::ValueId value) {
  const std::string_view op = node.op->name;
  // The weights of routers go to the ranks of experts in rows of one column.
  if (op == "exchange_rows") return graph.value(value).type.dim(1) > 1;
  if (op == "attention" || op == "add_norm_statistics") return value == node.outputs[0];
  if (ir::product_form(node) != nullptr) return true;
  return std::find(kActivations.begin(), kActivations.end(), op) != kActivations.end();
}

Conversion cast_to(DType dtype) {
  return {"cast", {{"dtype", std::string(to_string(dtype))}, {"rounding", "even"}}};
}

}  // namespace

bool may_wait_as(const ir::Graph& graph, ir::ValueId value, spec::SavedForm form) {
  const ir::Value& v = graph.value(value);
  if (v.producer == ir::kNoNode) return false;
  const ir::Node& node = graph.node(v.producer);
  if (node.tag.phase != ir::Phase::kForward) return false;
  const bool is_float = v.type.dtype == DType::kFloat32, is_half = v.type.dtype == DType::kBFloat16;
  switch (form) {
    case spec::SavedForm::kWhole:
      return true;
    case spec::SavedForm::kDisk:
      return is_float || is_half;
    case spec::SavedForm::kBFloat16:
      if (!is_float) return false;
      break;
    case spec::SavedForm::kInt8:
      if (!is_float && !is_half) return false;
      break;
  }
  return v.type.ndim() == 2 && v.type.layout == kRowMajor && text(node.tag.segment) != "router" &&
         makes_activation(graph, node, value);
}

std::int64_t saved_bytes(const TensorType& type, spec::SavedForm form) {
  switch (form) {
    case spec::SavedForm::kWhole:
      return type.num_bytes();
    case spec::SavedForm::kBFloat16:
      return 2 * type.num_elements();
    case spec::SavedForm::kInt8:
      return quantized(type, int8_format(spec::kCompressionBlock)).num_bytes();
    case spec::SavedForm::kDisk:
      break;
  }
  return 0;
}

Conversion conversion_to(spec::SavedForm form) {
  if (form == spec::SavedForm::kBFloat16) return cast_to(DType::kBFloat16);
  if (form == spec::SavedForm::kInt8) return {"quantize", {{"block", spec::kCompressionBlock}}};
  return {};
}

Conversion conversion_from(spec::SavedForm form, DType dtype) {
  switch (form) {
    case spec::SavedForm::kWhole:
      break;
    case spec::SavedForm::kBFloat16:
      return cast_to(dtype);
    case spec::SavedForm::kInt8:
      return {"dequantize", {{"dtype", std::string(to_string(dtype))}}};
    case spec::SavedForm::kDisk:
      return {"reload"};
  }
  return {};
}

}  // namespace anabatic::analysis
