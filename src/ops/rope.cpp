// SPDX-License-Identifier: Apache-2.0
#include "ops/rope.h"

#include <string>

#include "ops/build.h"
#include "ops/check.h"
#include "spec/rope.h"

namespace anabatic::ops {
namespace {

std::vector<TensorType> infer_rope(ir::Types inputs, const spec::Attributes& attributes) {
  const Check check("rope", inputs, attributes, {"head_dim", "inverse"});
  const Operand x = check.floating(0, "x", 2), table = check.wide(1, "table", 2);
  check.same_dim(table, 0, x, 0);
  const std::int64_t head_dim = check.positive_int("head_dim");
  check.multiple(x, 1, head_dim, "head_dim");
  check.multiple(table, 1, 2, "pairs of cosine and sine");
  if (table.size(1) > head_dim)
    check.fail("expected at most " + std::to_string(head_dim) +
               " columns in table (head_dim), got " + to_string(*table.type));
  check.flag("inverse");
  return {*x.type};
}

std::vector<TensorType> infer_pair(ir::Types inputs, const spec::Attributes& attributes) {
  const Check check("rope_pair", inputs, attributes, {"head_dim", "inverse"}, {"epsilon"});
  const Operand a = check.floating(0, "a", 2), b = check.floating(1, "b", 2),
                table = check.wide(2, "table", 2);
  check.same_dtype(a, b);
  check.same_dim(table, 0, a, 0);
  check.same_dim(table, 0, b, 0);
  const std::int64_t head_dim = check.positive_int("head_dim");
  check.multiple(a, 1, head_dim, "head_dim");
  check.multiple(b, 1, head_dim, "head_dim");
  check.multiple(table, 1, 2, "pairs of cosine and sine");
  if (table.size(1) > head_dim)
    check.fail("expected at most " + std::to_string(head_dim) +
               " columns in table (head_dim), got " + to_string(*table.type));
  check.flag("inverse");
  const bool has_norms = check.num_inputs() > 3;
  if (check.num_inputs() == 4) check.fail("expected the weights of both norms or none, got one");
  if (has_norms != check.has("epsilon"))
    check.fail(
        "expected attribute 'epsilon' together with the weights of norms, and only with them");
  if (has_norms) {
    check.non_negative("epsilon");
    check.size(check.wide(3, "weight_a", 1), 0, head_dim);
    check.size(check.wide(4, "weight_b", 1), 0, head_dim);
  }
  return {*a.type, *b.type};
}

std::vector<TensorType> infer_table(ir::Types inputs, const spec::Attributes& attributes) {
  static const spec::Attributes known = spec::to_attributes(spec::Rope{});
  const Check check("rope_table", inputs, {});
  const Operand positions = check.i32(0, "positions", 1);
  for (const auto& [key, value] : attributes)
    if (known.find(key) == known.end())
      check.fail("unknown attribute '" + key + "' = " + spec::to_string(value));
  const spec::Rope rope = spec::rope_from_attributes(attributes);
  if (rope.rotary_dim <= 0 || rope.rotary_dim % 2 != 0)
    check.fail("expected an even rotary_dim > 0, got " + std::to_string(rope.rotary_dim));
  return {typed(DType::kFloat32, {positions.dim(0), rope.rotary_dim})};
}

// The gradient of a rotation is the rotation back.
ir::Gradients rope_gradient(ir::GraphBuilder& builder, const ir::Node& node,
                            OutputGradients of_outputs) {
  if (!of_outputs[0]) return ir::Gradients(2);
  spec::Attributes attributes = node.attributes;
  attributes["inverse"] = !spec::get_bool(attributes, "inverse");
  return {builder.add1("rope", {*of_outputs[0], node.inputs[1]}, std::move(attributes)),
          std::nullopt};
}

ir::Cost pair_cost(ir::Types inputs, ir::Types outputs, const spec::Attributes&) {
  const std::int64_t flops_per_element = inputs.size() > 3 ? 7 : 3;
  const std::int64_t elements = inputs[0].num_elements() + inputs[1].num_elements();
  return streaming_cost(inputs, outputs, product({flops_per_element, elements}));
}

// A product, a cosine and a sine a pair.
ir::Cost table_cost(ir::Types inputs, ir::Types outputs, const spec::Attributes&) {
  return elementwise_cost(inputs, outputs, 2);
}

}  // namespace

const ir::OpSchema kRope{.name = "rope",
                         .min_inputs = 2,
                         .max_inputs = 2,
                         .signature = "(x [T,H*D], table f32[T,rotary_dim]) -> like x",
                         .infer = infer_rope,
                         .gradient = rope_gradient,
                         .cost = cost_an_element<3>,
                         .may_alias = ir::always<0>};

const ir::OpSchema kRopePair{
    .name = "rope_pair",
    .min_inputs = 3,
    .max_inputs = 5,
    .num_outputs = 2,
    .signature =
        "(a [T,G*D], b [T,H*D], table f32[T,rotary_dim], weight_a? f32[D], weight_b? "
        "f32[D]) -> like a, like b",
    .infer = infer_pair,
    .cost = pair_cost,
    .may_alias = ir::always<0, 1>};

const ir::OpSchema kRopeTable{.name = "rope_table",
                              .min_inputs = 1,
                              .max_inputs = 1,
                              .signature = "(positions i32[T]) -> f32[T,rotary_dim]",
                              .infer = infer_table,
                              .cost = table_cost};

}  // namespace anabatic::ops
