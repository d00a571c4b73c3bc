// SPDX-License-Identifier: Apache-2.0
#include "analysis/compression.h"

#include <algorithm>
#include <array>
#include <string>
#include <string_view>

#include "ir/op_schema.h"

namespace anabatic::analysis {
namespace {

constexpr std::array<std::string_view, 9> kActivations{"add",       "add_rms_norm", "embedding",
                                                       "permute",   "rms_norm",     "rope",
                                                       "rope_pair", "swiglu",       "unpermute"};

bool makes_activation(const ir::Node& node, ir::ValueId value) {
  const std::string_view op = node.op->name;
  if (op == "attention") return value == node.outputs[0];
  if (op.starts_with("linear") || op.starts_with("grouped_linear")) return true;
  return std::find(kActivations.begin(), kActivations.end(), op) != kActivations.end();
}

Conversion cast_to(DType dtype) {
  return {"cast", {{"dtype", std::string(to_string(dtype))}, {"rounding", "even"}}};
}

}  // namespace

bool may_compress(const ir::Graph& graph, ir::ValueId value, spec::Compression format) {
  const ir::Value& v = graph.value(value);
  const bool has_format =
      format == spec::Compression::kInt8
          ? v.type.dtype == DType::kFloat32 || v.type.dtype == DType::kBFloat16
          : format == spec::Compression::kBFloat16 && v.type.dtype == DType::kFloat32;
  if (!has_format || v.producer == ir::kNoNode || v.type.ndim() != 2 || v.type.layout != kRowMajor)
    return false;
  const ir::Node& node = graph.node(v.producer);
  return node.tag.phase == ir::Phase::kForward && text(node.tag.segment) != "router" &&
         makes_activation(node, value);
}

std::int64_t compressed_bytes(const TensorType& type, spec::Compression format) {
  switch (format) {
    case spec::Compression::kNone:
      return type.num_bytes();
    case spec::Compression::kBFloat16:
      return 2 * type.num_elements();
    case spec::Compression::kInt8:
      return type.num_elements() +
             4 * type.dim(0) *
                 ((type.dim(1) + spec::kCompressionBlock - 1) / spec::kCompressionBlock);
  }
  return 0;
}

Conversion compression_to(spec::Compression format) {
  return format == spec::Compression::kInt8
             ? Conversion{"quantize", {{"block", spec::kCompressionBlock}}}
             : cast_to(DType::kBFloat16);
}

Conversion decompression_from(spec::Compression format, DType dtype) {
  if (format != spec::Compression::kInt8) return cast_to(dtype);
  return {"dequantize",
          {{"block", spec::kCompressionBlock}, {"dtype", std::string(to_string(dtype))}}};
}

}  // namespace anabatic::analysis
