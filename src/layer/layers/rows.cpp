// SPDX-License-Identifier: Apache-2.0
// Layers that work on rows alone: norms, activations, rotations, sums.
#include <fmt/core.h>

#include "layer/layer_builder.h"
#include "layer/layers/layers.h"

namespace anabatic::layer {
namespace {

spec::Attributes norm_attributes(const LayerBuilder& b) {
  return {{"epsilon", b.number("epsilon", 1e-6)}};
}

// That of x, or what the attribute `output` says.
LayerDtype output_of(const LayerBuilder& b) {
  const std::string output = b.word("output", "");
  if (output.empty()) return b.dtype("x");
  if (output != "bf16" && output != "fp32")
    b.fail("expected attribute 'output' to be bf16 or fp32, got '" + output + "'");
  return output == "bf16" ? LayerDtype::kBFloat16 : LayerDtype::kFloat32;
}

}  // namespace

void add(LayerBuilder& b) {
  for (const std::int64_t axis : {0, 1}) b.same_dim("b", axis, "a", axis);
  b.same_dtype("b", "a");
  b.begin("add");
  const ir::ValueId first = b.input("a"), second = b.input("b");
  b.output(b.op("add", {first, second}), "y", b.dtype("a"));
}

void cast(LayerBuilder& b) {
  b.begin("cast");
  b.output(b.input("x"), "y", output_of(b));
}

void rms_norm(LayerBuilder& b) {
  const std::int64_t heads = b.integer("heads", 1);
  if (heads < 1 || b.dim("weight", 0) * heads != b.dim("x", 1)) {
    if (heads == 1) b.same_dim("weight", 0, "x", 1);
    b.fail(fmt::format("expected x with {} columns for {} heads of weight's width {}, got {}",
                       b.dim("weight", 0) * heads, heads, b.dim("weight", 0), b.dim("x", 1)));
  }
  b.begin("norm");
  const ir::ValueId x = b.input("x"), weight = b.vector("weight");
  b.output(b.op("rms_norm", {x, weight}, norm_attributes(b)), "y", output_of(b));
}

void add_rms_norm(LayerBuilder& b) {
  b.same_dim("weight", 0, "x", 1);
  for (const std::int64_t axis : {0, 1}) b.same_dim("residual", axis, "x", axis);
  b.same_dtype("residual", "x");
  b.begin("norm");
  const ir::ValueId x = b.input("x"), weight = b.vector("weight"), residual = b.input("residual");
  const ir::ValueId sum = b.op("add", {x, residual});
  b.output(sum, "sum", b.dtype("x"));
  b.output(b.op("rms_norm", {sum, weight}, norm_attributes(b)), "y", output_of(b));
}

void swiglu(LayerBuilder& b) {
  for (const std::int64_t axis : {0, 1}) b.same_dim("up", axis, "gate", axis);
  b.same_dtype("up", "gate");
  const spec::Attributes activation = b.activation();
  if (!spec::is_gated(spec::activation_of(activation)))
    b.fail("expected an activation of gate and up, got '" + b.word("activation", "") + "'");
  b.begin("mlp");
  const ir::ValueId gate = b.input("gate"), up = b.input("up");
  b.output(b.op("activation", {gate, up}, activation), "y", b.dtype("gate"));
}

void rope(LayerBuilder& b) {
  b.same_dim("table", 0, "x", 0);
  b.begin("attention");
  const ir::ValueId x = b.input("x"), table = b.input("table");
  b.output(b.op("rope", {x, table}, {{"head_dim", b.integer("head_dim")}, {"inverse", false}}), "y",
           b.dtype("x"));
}

}  // namespace anabatic::layer
