// SPDX-License-Identifier: Apache-2.0
#include "ops/adamw.h"

#include "ops/build.h"
#include "ops/check.h"
#include "tensor/panels.h"

namespace anabatic::ops {
namespace {

std::vector<TensorType> updated(const Check& check, ir::Types inputs) {
  const Operand parameter = check.wide(0, "parameter");
  for (int i = 1; i < 4; ++i) {
    constexpr std::string_view kNames[] = {"parameter", "gradient", "first_moment",
                                           "second_moment"};
    const Operand other = check.wide(i, kNames[i]);
    check.same_type(parameter, other);
  }
  check.wide(4, "clip_factor", 0);
  check.wide(5, "learning_rate", 0);
  check.i32(6, "step", 0);
  check.fraction("beta1");
  check.fraction("beta2");
  check.non_negative("epsilon");
  check.non_negative("weight_decay");
  return {inputs[0], inputs[2], inputs[3]};
}

std::vector<TensorType> infer(ir::Types inputs, const spec::Attributes& attributes) {
  return updated(Check("adamw", inputs, attributes, {"beta1", "beta2", "epsilon", "weight_decay"}),
                 inputs);
}

std::vector<TensorType> infer_packs(const Check& check, ir::Types inputs,
                                    std::initializer_list<bool> packings) {
  std::vector<TensorType> types = updated(check, inputs);
  const Operand parameter = check.wide(0, "parameter");
  check.right_operand(parameter, false);
  if (parameter.type->ndim() != 2 && parameter.type->ndim() != 3)
    check.fail("expected parameter to be a matrix or a stack of matrices, got " +
               to_string(*parameter.type));
  for (const bool transposed : packings) {
    types.push_back(with_dtype(*parameter.type, check.dtype("dtype")));
    types.back().layout = panels_layout(transposed);
  }
  return types;
}

std::vector<TensorType> infer_pack(ir::Types inputs, const spec::Attributes& attributes) {
  return infer_packs(Check("adamw_pack", inputs, attributes,
                           {"beta1", "beta2", "epsilon", "weight_decay", "dtype"}),
                     inputs, {false, true});
}

std::vector<TensorType> infer_pack_transposed(ir::Types inputs,
                                              const spec::Attributes& attributes) {
  const Check check("adamw_pack_transposed", inputs, attributes,
                    {"beta1", "beta2", "epsilon", "weight_decay", "dtype"});
  if (inputs[0].layout != panels_layout(false))
    check.fail("expected parameter of layout panels, got " + to_string(inputs[0]));
  return infer_packs(check, inputs, {true});
}

// A multiply-add each for decay, both moments and the step; a root, two quotients, two scalings.
ir::Cost cost(ir::Types inputs, ir::Types outputs, const spec::Attributes&) {
  return elementwise_cost(inputs, outputs, 14);
}

}  // namespace

const ir::OpSchema kAdamw{
    .name = "adamw",
    .min_inputs = 7,
    .max_inputs = 7,
    .num_outputs = 3,
    .signature =
        "(parameter f32 any, gradient, first_moment, second_moment, clip_factor f32[], "
        "learning_rate f32[], step i32[]) -> parameter, first_moment, second_moment",
    .infer = infer,
    .cost = cost,
    .must_alias = {0, 2, 3}};

const ir::OpSchema kAdamwPack{
    .name = "adamw_pack",
    .min_inputs = 7,
    .max_inputs = 7,
    .num_outputs = 5,
    .signature =
        "(parameter f32 [N,K] or [E,N,K], gradient, first_moment, second_moment, clip_factor "
        "f32[], "
        "learning_rate f32[], step i32[]) -> parameter, first_moment, second_moment, packed, "
        "packed_transposed",
    .infer = infer_pack,
    .cost = cost,
    .must_alias = {0, 2, 3, -1, -1}};

const ir::OpSchema kAdamwPackTransposed{
    .name = "adamw_pack_transposed",
    .min_inputs = 7,
    .max_inputs = 7,
    .num_outputs = 4,
    .signature =
        "(parameter f32 [N,K]@panels or [E,N,K]@panels, gradient, first_moment, second_moment, "
        "clip_factor f32[], learning_rate f32[], step i32[]) -> parameter, first_moment, "
        "second_moment, packed_transposed",
    .infer = infer_pack_transposed,
    .cost = cost,
    .must_alias = {0, 2, 3, -1}};

}  // namespace anabatic::ops
