// SPDX-License-Identifier: Apache-2.0
#include "ops/embedding.h"

#include "ops/build.h"
#include "ops/check.h"

namespace anabatic::ops {
namespace {

// Tokens of this index give the table no gradient, as torch's padding_idx.
void check_padding(const Check& check, const spec::Attributes& attributes) {
  if (attributes.find("padding") != attributes.end()) check.non_negative_int("padding");
}

std::vector<TensorType> infer_embedding(ir::Types inputs, const spec::Attributes& attributes) {
  const Check check("embedding", inputs, attributes, {}, {"padding"});
  check_padding(check, attributes);
  const Operand table = check.floating(0, "table", 2), indices = check.i32(1, "indices", 1);
  return {typed(table.dtype(), {indices.dim(0), table.dim(1)})};
}

// The gradient op cannot know V from its inputs, so the forward node's V travels as an attribute.
std::vector<TensorType> infer_embedding_gradient(ir::Types inputs,
                                                 const spec::Attributes& attributes) {
  const Check check("embedding_weight_gradient", inputs, attributes, {"rows"}, {"padding"});
  check_padding(check, attributes);
  const Operand indices = check.i32(0, "indices", 1), dy = check.floating(1, "dy", 2);
  check.same_dim(indices, 0, dy, 0);
  return {typed(wide_dtype(dy.dtype()), {check.positive_int("rows"), dy.dim(1)})};
}

ir::Gradients embedding_gradient(ir::GraphBuilder& builder, const ir::Node& node,
                                 OutputGradients of_outputs) {
  if (!of_outputs[0]) return ir::Gradients(2);
  const WeightPhase phase(builder);
  spec::Attributes attributes = node.attributes;
  attributes["rows"] = builder.type(node.inputs[0]).dim(0);
  return {builder.add1("embedding_weight_gradient", {node.inputs[1], *of_outputs[0]},
                       std::move(attributes)),
          std::nullopt};
}

// Touches at most one row a token.
ir::Cost embedding_gradient_cost(ir::Types inputs, ir::Types outputs, const spec::Attributes&) {
  return {.flops = inputs[1].num_elements(),
          .bytes_read = inputs[0].num_bytes() + inputs[1].num_bytes(),
          .bytes_written = product({inputs[1].num_elements(), size_bytes(outputs[0].dtype)})};
}

}  // namespace

const ir::OpSchema kEmbedding{.name = "embedding",
                              .min_inputs = 2,
                              .max_inputs = 2,
                              .signature = "(table [V,H], indices i32[T]) -> [T,H] like table",
                              .infer = infer_embedding,
                              .gradient = embedding_gradient,
                              .cost = gather_cost};

const ir::OpSchema kEmbeddingWeightGradient{
    .name = "embedding_weight_gradient",
    .min_inputs = 2,
    .max_inputs = 2,
    .signature = "(indices i32[T], dy [T,H]) -> f32[rows,H]",
    .infer = infer_embedding_gradient,
    .cost = embedding_gradient_cost,
    .can_accumulate = true,
    .writes_all = false};

}  // namespace anabatic::ops
