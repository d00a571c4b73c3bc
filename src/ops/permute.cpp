// SPDX-License-Identifier: Apache-2.0
#include "ops/permute.h"

#include "base/error.h"
#include "ops/build.h"
#include "ops/check.h"

namespace anabatic::ops {
namespace {

std::vector<TensorType> infer(ir::Types inputs, const spec::Attributes& attributes) {
  const Check check("permute", inputs, attributes, {"top_k"});
  const Operand x = check.floating(0, "x", 2), row_map = check.i32(1, "row_map", 1);
  check.size(row_map, 0, product({x.size(0), check.positive_int("top_k")}));
  return {typed(x.dtype(), {row_map.dim(0), x.dim(1)})};
}

std::vector<TensorType> infer_gradient(ir::Types inputs, const spec::Attributes& attributes) {
  const Check check("permute_gradient", inputs, attributes, {"top_k"});
  const Operand dy = check.floating(0, "dy", 2), slots = check.i32(1, "slots", 1);
  check.same_dim(slots, 0, dy, 0);
  const std::int64_t top_k = check.positive_int("top_k");
  check.multiple(dy, 0, top_k, "top_k");
  return {typed(dy.dtype(), {dy.size(0) / top_k, dy.dim(1)})};
}

// The inverse of row_map is route_sort's second output.
ir::Gradients gradient(ir::GraphBuilder& builder, const ir::Node& node,
                       OutputGradients of_outputs) {
  if (!of_outputs[0]) return ir::Gradients(2);
  const ir::NodeId producer = builder.graph().value(node.inputs[1]).producer;
  ANABATIC_REQUIRE(
      producer != ir::kNoNode && builder.graph().node(producer).op->name == "route_sort",
      "[permute] expected row_map to come from route_sort, which knows its inverse");
  const ir::ValueId slots = builder.graph().node(producer).outputs[1];
  return {builder.add1("permute_gradient", {*of_outputs[0], slots}, node.attributes), std::nullopt};
}

ir::Cost cost(ir::Types inputs, ir::Types outputs, const spec::Attributes&) {
  return {.flops = 0,
          .bytes_read = outputs[0].num_bytes() + inputs[1].num_bytes(),
          .bytes_written = outputs[0].num_bytes()};
}

ir::Cost gradient_cost(ir::Types inputs, ir::Types outputs, const spec::Attributes&) {
  return streaming_cost(inputs, outputs, inputs[0].num_elements());
}

}  // namespace

const ir::OpSchema kPermute{.name = "permute",
                            .min_inputs = 2,
                            .max_inputs = 2,
                            .signature = "(x [T,H], row_map i32[R]) -> [R,H] like x",
                            .infer = infer,
                            .gradient = gradient,
                            .cost = cost};

const ir::OpSchema kPermuteGradient{.name = "permute_gradient",
                                    .min_inputs = 2,
                                    .max_inputs = 2,
                                    .signature = "(dy [R,H], slots i32[R]) -> [T,H] like dy",
                                    .infer = infer_gradient,
                                    .cost = gradient_cost};

}  // namespace anabatic::ops
