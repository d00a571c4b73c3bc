// SPDX-License-Identifier: Apache-2.0
#include "ops/permute.h"

#include "base/error.h"
#include "ops/build.h"
#include "ops/check.h"
#include "ops/ranks/dispatch_map.h"
#include "ops/route_sort.h"

namespace anabatic::ops {
namespace {

std::vector<TensorType> infer_permute(ir::Types inputs, const spec::Attributes& attributes) {
  const Check check("permute", inputs, attributes, {"top_k"});
  const Operand x = check.floating(0, "x", 2), row_map = check.i32(1, "row_map", 1);
  check.size(row_map, 0, product({x.size(0), check.positive_int("top_k")}));
  return {typed(x.dtype(), {row_map.dim(0), x.dim(1)})};
}

std::vector<TensorType> infer_permute_gradient(ir::Types inputs,
                                               const spec::Attributes& attributes) {
  const Check check("permute_gradient", inputs, attributes, {"top_k"});
  const Operand dy = check.floating(0, "dy", 2), slots = check.i32(1, "slots", 1);
  check.same_dim(slots, 0, dy, 0);
  const std::int64_t top_k = check.positive_int("top_k");
  check.multiple(dy, 0, top_k, "top_k");
  return {typed(dy.dtype(), {dy.size(0) / top_k, dy.dim(1)})};
}

// Each of the two is the gradient of the other, with the inverse of its map.
ir::Gradients gradient_by_inverse(ir::GraphBuilder& builder, const ir::Node& node,
                                  OutputGradients of_outputs, std::string_view gradient_op) {
  if (!of_outputs[0]) return ir::Gradients(2);
  const std::optional<ir::ValueId> inverse = inverse_map(builder.graph(), node.inputs[1]);
  ANABATIC_REQUIRE(inverse.has_value(),
                   "[{}] expected a map from route_sort or dispatch_map, which know its inverse",
                   node.op->name);
  return {builder.add1(gradient_op, {*of_outputs[0], *inverse}, node.attributes), std::nullopt};
}

ir::Gradients permute_gradient(ir::GraphBuilder& builder, const ir::Node& node,
                               OutputGradients of_outputs) {
  return gradient_by_inverse(builder, node, of_outputs, "permute_gradient");
}

ir::Gradients gradient_of_sum(ir::GraphBuilder& builder, const ir::Node& node,
                              OutputGradients of_outputs) {
  return gradient_by_inverse(builder, node, of_outputs, "permute");
}

ir::Cost permute_gradient_cost(ir::Types inputs, ir::Types outputs, const spec::Attributes&) {
  return streaming_cost(inputs, outputs, inputs[0].num_elements());
}

}  // namespace

bool is_row_sort(const ir::Node& node) {
  return node.op == &kRouteSort || node.op == &kDispatchMap;
}

std::optional<ir::ValueId> inverse_map(const ir::Graph& graph, ir::ValueId map) {
  const ir::NodeId producer = graph.value(map).producer;
  if (producer == ir::kNoNode || !is_row_sort(graph.node(producer))) return std::nullopt;
  const std::vector<ir::ValueId>& outputs = graph.node(producer).outputs;
  for (const std::size_t i : {0, 1})
    if (outputs[i] == map) return outputs[1 - i];
  return std::nullopt;
}

const ir::OpSchema kPermute{.name = "permute",
                            .min_inputs = 2,
                            .max_inputs = 2,
                            .signature = "(x [T,H], row_map i32[R]) -> [R,H] like x",
                            .infer = infer_permute,
                            .gradient = permute_gradient,
                            .cost = gather_cost};

const ir::OpSchema kPermuteGradient{.name = "permute_gradient",
                                    .min_inputs = 2,
                                    .max_inputs = 2,
                                    .signature = "(dy [R,H], slots i32[R]) -> [T,H] like dy",
                                    .infer = infer_permute_gradient,
                                    .gradient = gradient_of_sum,
                                    .cost = permute_gradient_cost};

}  // namespace anabatic::ops
