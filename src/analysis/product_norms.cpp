// SPDX-License-Identifier: Apache-2.0
#include "analysis/product_norms.h"

#include "ir/op_schema.h"
#include "spec/product_prologue.h"

namespace anabatic::analysis {

std::optional<RowNorm> row_norm_of(const ir::Graph& graph, const ir::Node& node) {
  if (node.tag.phase != ir::Phase::kForward) return std::nullopt;
  RowNorm norm;
  if (node.op->name == "rms_norm")
    norm = {spec::kRmsNorm, false, node.inputs[0], node.outputs[0], {node.inputs[1]}};
  else if (node.op->name == "add_rms_norm")
    norm = {spec::kRmsNorm, true, node.outputs[0], node.outputs[1], {node.inputs[1]}};
  else if (node.op->name == "layer_norm")
    norm = {
        spec::kLayerNorm, false, node.inputs[0], node.outputs[0], {node.inputs[1], node.inputs[2]}};
  else
    return std::nullopt;
  const TensorType& x = graph.value(norm.x).type;
  const bool is_known = x.dtype == DType::kFloat32 || x.dtype == DType::kBFloat16;
  const bool is_of_rows = graph.value(norm.parameters[0]).type.dim(0) == x.dim(1);
  return is_known && is_of_rows ? std::optional(norm) : std::nullopt;
}

}  // namespace anabatic::analysis
