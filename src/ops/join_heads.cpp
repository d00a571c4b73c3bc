// SPDX-License-Identifier: Apache-2.0
#include "ops/join_heads.h"

#include <string>

#include "ops/build.h"
#include "ops/check.h"

namespace anabatic::ops {
namespace {

std::vector<TensorType> infer_join_heads(ir::Types inputs, const spec::Attributes& attributes) {
  const Check check("join_heads", inputs, attributes, {"num_heads"});
  const Operand shared = check.floating(0, "shared", 2), own = check.floating(1, "own", 2);
  check.same_dtype(own, shared);
  check.same_dim(own, 0, shared, 0);
  const std::int64_t heads = check.positive_int("num_heads");
  check.multiple(own, 1, heads, "num_heads");
  return {typed(own.dtype(), {own.dim(0), product({heads, shared.size(1)}) + own.size(1)})};
}

std::vector<TensorType> infer_join_heads_gradient(ir::Types inputs,
                                                  const spec::Attributes& attributes) {
  const Check check("join_heads_gradient", inputs, attributes, {"num_heads", "shared"});
  const Operand dy = check.floating(0, "dy", 2);
  const std::int64_t heads = check.positive_int("num_heads"), shared = check.positive_int("shared");
  check.multiple(dy, 1, heads, "num_heads");
  if (shared > dy.size(1) / heads)
    check.fail("expected at most the " + std::to_string(dy.size(1) / heads) +
               " columns of a head as 'shared', got " + std::to_string(shared));
  return {typed(dy.dtype(), {dy.dim(0), shared}),
          typed(dy.dtype(), {dy.dim(0), dy.size(1) - product({heads, shared})})};
}

ir::Gradients join_heads_gradient(ir::GraphBuilder& builder, const ir::Node& node,
                                  OutputGradients of_outputs) {
  if (!of_outputs[0]) return ir::Gradients(2);
  const auto d = builder.add("join_heads_gradient", {*of_outputs[0]},
                             {{"num_heads", spec::get_int(node.attributes, "num_heads")},
                              {"shared", builder.type(node.inputs[0]).dim(1)}});
  return {d[0], d[1]};
}

ir::Cost join_heads_gradient_cost(ir::Types inputs, ir::Types outputs,
                                  const spec::Attributes& attributes) {
  return streaming_cost(
      inputs, outputs,
      product({outputs[0].num_elements(), spec::get_int(attributes, "num_heads")}));
}

}  // namespace

const ir::OpSchema kJoinHeads{.name = "join_heads",
                              .min_inputs = 2,
                              .max_inputs = 2,
                              .signature = "(shared [T,S], own [T,H*N]) -> [T,H*(S+N)] like own",
                              .infer = infer_join_heads,
                              .gradient = join_heads_gradient,
                              .cost = copy_cost};

const ir::OpSchema kJoinHeadsGradient{
    .name = "join_heads_gradient",
    .min_inputs = 1,
    .max_inputs = 1,
    .num_outputs = 2,
    .signature = "(dy [T,H*(S+N)]) -> dshared [T,S], down [T,H*N] like dy",
    .infer = infer_join_heads_gradient,
    .cost = join_heads_gradient_cost};

}  // namespace anabatic::ops
