// SPDX-License-Identifier: Apache-2.0
#include "ops/adamw.h"

#include <fmt/core.h>

#include "ops/build.h"
#include "ops/check.h"
#include "tensor/dynamic_map.h"
#include "tensor/panels.h"

namespace anabatic::ops {
namespace {

constexpr int kNone = -1;

// Inputs by their place.
struct Places {
  int parameter, gradient, first, second, clip_factor, learning_rate, step;
};
constexpr Places kWhole{0, 1, 2, 3, 4, 5, 6}, kSplit{kNone, 2, 3, 4, 5, 6, 7};

// Of a slice, moments and lower halves: rows from `first_row` on, counted through all matrices;
// whole panels of one matrix, or whole matrices.
void check_slice(const Check& check, const Operand& gradient, const Operand& slice) {
  const std::int64_t first = check.non_negative_int("first_row"), ndim = gradient.type->ndim();
  const auto fail = [&] {
    check.fail(fmt::format("expected {} of whole panels or matrices of {}, got {} from row {} on",
                           slice.name, to_string(*gradient.type), to_string(*slice.type), first));
  };
  if ((ndim != 2 && ndim != 3) || slice.type->ndim() != ndim || slice.size(-1) != gradient.size(-1))
    fail();
  const std::int64_t rows = gradient.size(-2), count = slice.size(-2),
                     matrices = ndim == 3 ? gradient.size(0) : 1,
                     slice_matrices = ndim == 3 ? slice.size(0) : 1;
  if (rows == 0 || count > rows || slice_matrices > matrices ||
      first > matrices * rows - slice_matrices * count)
    fail();
  const std::int64_t row = first % rows;
  if (count == rows ? row != 0
                    : slice_matrices != 1 || row % kPanelColumns != 0 || row + count > rows ||
                          (count % kPanelColumns != 0 && row + count != rows))
    fail();
}

// Codes of 8 bits, laid out as the gradient is, and behind all other inputs a scale for each block.
void check_codes(const Check& check, ir::Types inputs, const Operand& gradient,
                 const Places& places) {
  const auto expect = [&](int i, std::string_view name, const TensorType& wanted) {
    const TensorType& type = inputs[static_cast<std::size_t>(i)];
    if (type != wanted)
      check.fail(
          fmt::format("expected {} to be {}, got {}", name, to_string(wanted), to_string(type)));
  };
  const TensorType codes = with_dtype(*gradient.type, DType::kUInt8);
  if (codes.ndim() != 2 && codes.ndim() != 3)
    check.fail("expected moments in 8 bits of a matrix or a stack of matrices, got " +
               to_string(codes));
  expect(places.first, "first_moment", codes);
  expect(places.second, "second_moment", codes);
  if (check.num_inputs() != places.step + 3)
    check.fail("expected two inputs of scales behind moments in 8 bits");
  const TensorType scales = block_scales_type(codes, wide_dtype(gradient.dtype()));
  expect(places.step + 1, "first_scales", scales);
  expect(places.step + 2, "second_scales", scales);
  if (check.has("stream")) check.fail("expected no 'stream' beside moments in 8 bits, got one");
  if (check.has("first_row"))
    check.fail("expected whole moments in 8 bits, got those of rows from 'first_row' on");
}

// Outputs end with the scales of moments in 8 bits, if they are.
void append_scales(std::vector<TensorType>& types, ir::Types inputs, const Places& places) {
  const auto first = static_cast<std::size_t>(places.step) + 1;
  for (std::size_t i = first; i < inputs.size(); ++i) types.push_back(inputs[i]);
}

// Moments are as wide as the parameter, or bf16, which takes a stream of draws for its roundings.
void check_moments(const Check& check, const Operand& gradient, int first, int second) {
  constexpr std::string_view kNames[] = {"first_moment", "second_moment"};
  for (const int i : {first, second}) {
    const Operand moment = check.floating(i, kNames[i == second]);
    if (check.has("first_row"))
      check_slice(check, gradient, moment);
    else
      check.same_shape(gradient, moment);
    if (moment.type->layout != gradient.type->layout)
      check.fail("expected moments of the gradient's layout, got " + to_string(*moment.type));
    const bool is_half = moment.dtype() == DType::kBFloat16;
    if (!is_half) check.same_dtype(gradient, moment);
    if (is_half != check.has("stream"))
      check.fail(is_half ? "expected 'stream' beside moments in bf16, got none"
                         : "expected no 'stream' beside moments in f32, got one");
  }
  check.same_dtype(check.floating(first, kNames[0]), check.floating(second, kNames[1]));
  if (check.has("stream")) check.non_negative_int("stream");
}

void check_rest(const Check& check, ir::Types inputs, const Places& places) {
  const Operand gradient = check.wide(places.gradient, "gradient");
  if (inputs[static_cast<std::size_t>(places.first)].dtype == DType::kUInt8) {
    check_codes(check, inputs, gradient, places);
  } else {
    check_moments(check, gradient, places.first, places.second);
    if (check.num_inputs() != places.step + 1)
      check.fail("expected scales beside moments in 8 bits only");
  }
  check.wide(places.clip_factor, "clip_factor", 0);
  check.wide(places.learning_rate, "learning_rate", 0);
  check.i32(places.step, "step", 0);
  check.fraction("beta1");
  check.fraction("beta2");
  check.non_negative("epsilon");
  check.non_negative("weight_decay");
}

std::vector<TensorType> updated(const Check& check, ir::Types inputs) {
  check.same_type(check.wide(0, "parameter"), check.wide(1, "gradient"));
  check_rest(check, inputs, kWhole);
  return {inputs[0], inputs[2], inputs[3]};
}

// The parameter in two halves (tensor/split_float.h), in the layout of the gradient.
std::vector<TensorType> updated_split(const Check& check, ir::Types inputs) {
  const Operand high = check.floating(0, "high"), gradient = check.wide(2, "gradient");
  const TensorType wanted = with_dtype(*gradient.type, DType::kBFloat16);
  if (*high.type != wanted)
    check.fail("expected high to be " + to_string(wanted) + ", got " + to_string(*high.type));
  const Operand low{"low", &inputs[1]};
  if (check.has("first_row")) check_slice(check, gradient, low);
  TensorType wanted_low = with_dtype(wanted, DType::kUInt16);
  if (check.has("first_row")) wanted_low.shape = inputs[3].shape;  // as the first moment
  if (*low.type != wanted_low)
    check.fail("expected low to be " + to_string(wanted_low) + ", got " + to_string(*low.type));
  check_rest(check, inputs, kSplit);
  return {inputs[0], inputs[1], inputs[3], inputs[4]};
}

std::vector<TensorType> infer(ir::Types inputs, const spec::Attributes& attributes) {
  std::vector<TensorType> types =
      updated(Check("adamw", inputs, attributes, {"beta1", "beta2", "epsilon", "weight_decay"},
                    {"stream", "first_row"}),
              inputs);
  append_scales(types, inputs, kWhole);
  return types;
}

std::vector<TensorType> infer_split(ir::Types inputs, const spec::Attributes& attributes) {
  std::vector<TensorType> types =
      updated_split(Check("adamw_split", inputs, attributes,
                          {"beta1", "beta2", "epsilon", "weight_decay"}, {"stream", "first_row"}),
                    inputs);
  append_scales(types, inputs, kSplit);
  return types;
}

std::vector<TensorType> infer_split_pack_transposed(ir::Types inputs,
                                                    const spec::Attributes& attributes) {
  const Check check("adamw_split_pack_transposed", inputs, attributes,
                    {"beta1", "beta2", "epsilon", "weight_decay"}, {"stream"});
  std::vector<TensorType> types = updated_split(check, inputs);
  if (inputs[0].layout != panels_layout(false))
    check.fail("expected high of layout panels, got " + to_string(inputs[0]));
  types.push_back(inputs[0]);
  types.back().layout = panels_layout(true);
  append_scales(types, inputs, kSplit);
  return types;
}

// Behind the inputs of `adamw_split`: the packing that the slice becomes a part of.
std::vector<TensorType> infer_split_slice_pack_transposed(ir::Types inputs,
                                                          const spec::Attributes& attributes) {
  const ir::Types of_update = inputs.first(kSplit.step + 1);
  const Check check("adamw_split_slice_pack_transposed", of_update, attributes,
                    {"beta1", "beta2", "epsilon", "weight_decay", "first_row"}, {"stream"});
  std::vector<TensorType> types = updated_split(check, of_update);
  if (inputs[0].layout != panels_layout(false))
    check.fail("expected high of layout panels, got " + to_string(inputs[0]));
  TensorType packed = inputs[0];
  packed.layout = panels_layout(true);
  if (inputs.back() != packed)
    check.fail("expected packed_transposed to be " + to_string(packed) + ", got " +
               to_string(inputs.back()));
  types.push_back(std::move(packed));
  return types;
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
  append_scales(types, inputs, kWhole);
  return types;
}

std::vector<TensorType> infer_pack(ir::Types inputs, const spec::Attributes& attributes) {
  return infer_packs(Check("adamw_pack", inputs, attributes,
                           {"beta1", "beta2", "epsilon", "weight_decay", "dtype"}, {"stream"}),
                     inputs, {false, true});
}

std::vector<TensorType> infer_pack_transposed(ir::Types inputs,
                                              const spec::Attributes& attributes) {
  const Check check("adamw_pack_transposed", inputs, attributes,
                    {"beta1", "beta2", "epsilon", "weight_decay", "dtype"}, {"stream"});
  if (inputs[0].layout != panels_layout(false))
    check.fail("expected parameter of layout panels, got " + to_string(inputs[0]));
  return infer_packs(check, inputs, {true});
}

// A multiply-add each for decay, both moments and the step; a root, two quotients, two scalings.
// A slice reads and writes its own rows of the whole tensors; a packing is written alone.
ir::Cost cost(ir::Types inputs, ir::Types outputs, const spec::Attributes& attributes) {
  if (!attributes.contains("first_row")) return elementwise_cost(inputs, outputs, 14);
  if (is_panels(inputs.back().layout)) inputs = inputs.first(inputs.size() - 1);
  const std::int64_t count = inputs[inputs.size() - 4].num_elements();  // of the second moment
  const auto of_rows = [&](ir::Types types) {
    std::vector<TensorType> result;
    for (const TensorType& type : types)
      result.push_back(tensor_type(type.dtype, {type.ndim() > 1 ? count : 1}));
    return result;
  };
  return elementwise_cost(of_rows(inputs), of_rows(outputs), 14);
}

}  // namespace

const ir::OpSchema kAdamw{
    .name = "adamw",
    .min_inputs = 7,
    .max_inputs = 9,
    .num_outputs = ir::kAnyNumber,
    .signature =
        "(parameter f32 any, gradient, first_moment f32, bf16 or u8, second_moment, clip_factor "
        "f32[], "
        "learning_rate f32[], step i32[], first_scales? f32, second_scales?) -> parameter, "
        "first_moment, second_moment, first_scales?, second_scales?",
    .infer = infer,
    .cost = cost,
    .must_alias = {0, 2, 3, 7, 8}};

const ir::OpSchema kAdamwPack{
    .name = "adamw_pack",
    .min_inputs = 7,
    .max_inputs = 9,
    .num_outputs = ir::kAnyNumber,
    .signature =
        "(parameter f32 [N,K] or [E,N,K], gradient, first_moment, second_moment, clip_factor "
        "f32[], "
        "learning_rate f32[], step i32[], first_scales?, second_scales?) -> parameter, "
        "first_moment, second_moment, packed, packed_transposed, first_scales?, second_scales?",
    .infer = infer_pack,
    .cost = cost,
    .must_alias = {0, 2, 3, -1, -1, 7, 8}};

const ir::OpSchema kAdamwSplit{
    .name = "adamw_split",
    .min_inputs = 8,
    .max_inputs = 10,
    .num_outputs = ir::kAnyNumber,
    .signature =
        "(high bf16 any, low u16, gradient f32, first_moment, second_moment, clip_factor f32[], "
        "learning_rate f32[], step i32[], first_scales?, second_scales?) -> high, low, "
        "first_moment, second_moment, first_scales?, second_scales?",
    .infer = infer_split,
    .cost = cost,
    .must_alias = {0, 1, 3, 4, 8, 9}};

const ir::OpSchema kAdamwSplitPackTransposed{
    .name = "adamw_split_pack_transposed",
    .min_inputs = 8,
    .max_inputs = 10,
    .num_outputs = ir::kAnyNumber,
    .signature =
        "(high bf16 [N,K]@panels or [E,N,K]@panels, low u16, gradient f32, first_moment, "
        "second_moment, clip_factor f32[], learning_rate f32[], step i32[], first_scales?, "
        "second_scales?) -> high, low, first_moment, second_moment, packed_transposed, "
        "first_scales?, second_scales?",
    .infer = infer_split_pack_transposed,
    .cost = cost,
    .must_alias = {0, 1, 3, 4, -1, 8, 9}};

const ir::OpSchema kAdamwSplitSlicePackTransposed{
    .name = "adamw_split_slice_pack_transposed",
    .min_inputs = 9,
    .max_inputs = 9,
    .num_outputs = ir::kAnyNumber,
    .signature =
        "(high bf16 [N,K]@panels or [E,N,K]@panels, low u16, gradient f32, first_moment, "
        "second_moment, clip_factor f32[], learning_rate f32[], step i32[], packed_transposed "
        "bf16) -> high, low, first_moment, second_moment, packed_transposed",
    .infer = infer_split_slice_pack_transposed,
    .cost = cost,
    .must_alias = {0, 1, 3, 4, 8}};

const ir::OpSchema kAdamwPackTransposed{
    .name = "adamw_pack_transposed",
    .min_inputs = 7,
    .max_inputs = 9,
    .num_outputs = ir::kAnyNumber,
    .signature =
        "(parameter f32 [N,K]@panels or [E,N,K]@panels, gradient, first_moment, second_moment, "
        "clip_factor f32[], learning_rate f32[], step i32[], first_scales?, second_scales?) -> "
        "parameter, first_moment, second_moment, packed_transposed, first_scales?, "
        "second_scales?",
    .infer = infer_pack_transposed,
    .cost = cost,
    .must_alias = {0, 2, 3, -1, 7, 8}};

}  // namespace anabatic::ops
