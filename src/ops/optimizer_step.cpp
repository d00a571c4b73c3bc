// SPDX-License-Identifier: Apache-2.0
#include "ops/optimizer_step.h"

#include <fmt/core.h>

#include <cmath>

#include "ops/build.h"
#include "ops/check.h"
#include "ops/pack.h"
#include "tensor/dynamic_map.h"
#include "tensor/panels.h"

namespace anabatic::ops {
namespace {

using spec::OptimizerStep;
using spec::Packs;

constexpr std::string_view kName = "optimizer_step";

Check check_of(const OptimizerStep& step, ir::Types inputs, const spec::Attributes& attributes) {
  std::vector<std::string_view> required{"rule"};
  for (const spec::RuleNumber& number : spec::row_of(step.rule).numbers)
    required.push_back(number.name);
  const std::vector<std::string_view> optional{"delay", "dtype", "first_row", "grid",  "kept",
                                               "mask",  "packs", "split",     "stream"};
  const Check check(kName, inputs, attributes, required, optional);
  for (const spec::RuleNumber& number : spec::row_of(step.rule).numbers)
    number.range == spec::NumberRange::kFraction ? check.fraction(number.name)
                                                 : check.non_negative(number.name);
  return check;
}

// An update as its checks see it.
struct Update {
  const OptimizerStep& step;
  const Check& check;
  ir::Types inputs;
  const spec::Attributes* attributes;

  const TensorType& type(std::size_t place) const { return inputs[place]; }
  Operand wide(std::size_t place, std::string_view name, int ndim = kAnyNdim) const {
    return check.wide(static_cast<int>(place), name, ndim);
  }
  Operand floating(std::size_t place, std::string_view name) const {
    return check.floating(static_cast<int>(place), name);
  }
  Operand gradient() const { return wide(step.gradient(), "gradient"); }
  bool is_quantized() const { return type(step.first_moment()).is_quantized(); }

  void expect(std::size_t place, std::string_view name, const TensorType& wanted) const {
    if (type(place) != wanted)
      check.fail(fmt::format("expected {} to be {}, got {}", name, to_string(wanted),
                             to_string(type(place))));
  }
};

// That attributes and inputs speak of one form. `dtype` is that of the packings, unless they have
// the dtype of the upper 16 bits.
void check_form(const Update& update) {
  const auto& [step, check, inputs, attributes] = update;
  if (!step.is_split && inputs[1].dtype == DType::kUInt16)
    check.fail("expected 'split' with lower 16 bits of the parameter, got none");
  const bool packs = step.packs != Packs::kNone;
  if (check.has("dtype") && !packs) check.fail("expected 'packs' with 'dtype', got none");
  if (packs && check.has("dtype") == step.is_split)
    check.fail(step.is_split ? "expected no 'dtype' with 'split', got one"
                             : "expected 'dtype' of the packings, got none");
}

// After the operands of every update come the mask, if there is one, and the packing of the whole
// parameter, if a slice packs.
void check_number(const Update& update) {
  const OptimizerStep& step = update.step;
  const std::size_t count = step.step() + (step.mask ? 2 : 1), given = update.inputs.size();
  if (given < count)
    update.check.fail(fmt::format("expected at least {} inputs, got {}", count, given));
  if (step.writes_rows_of_packing()) {
    if (given != count + 1)
      update.check.fail("expected packed_transposed as the last input of a slice that packs");
  } else if (given == count + 1) {
    update.check.fail("expected 'packs' and 'first_row' with a packing among the inputs");
  } else if (given != count) {
    update.check.fail(fmt::format("expected {} inputs, got {}", count, given));
  }
}

// The moments or the lower 16 bits of a slice: rows from `first_row` on, counted through all
// matrices. They are whole panels of one matrix, or whole matrices.
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

void check_whole(const Update& update) {
  update.check.same_type(update.wide(0, "parameter"), update.gradient());
}

// The parameter as upper and lower 16 bits (tensor/split_float.h), in the layout of the gradient.
void check_halves(const Update& update) {
  const OptimizerStep& step = update.step;
  update.floating(0, "high");
  const Operand gradient = update.gradient(), low{"low", &update.type(step.low())};
  const TensorType high = with_dtype(*gradient.type, DType::kBFloat16);
  update.expect(0, "high", high);
  TensorType wanted = with_dtype(high, DType::kUInt16);
  if (step.is_slice) {
    check_slice(update.check, gradient, low);
    wanted.shape = update.type(step.first_moment()).shape;
  }
  update.expect(step.low(), "low", wanted);
}

// Moments in 8 bits, laid out as the gradient is.
void check_quantized(const Update& update) {
  const auto& [step, check, inputs, attributes] = update;
  const Operand gradient = update.gradient();
  if (gradient.type->ndim() != 2 && gradient.type->ndim() != 3)
    check.fail("expected moments in 8 bits of a matrix or a stack of matrices only, got gradient " +
               to_string(*gradient.type));
  const auto moment_type = [&](ElementMap map) {
    return quantized(*gradient.type, moment_format(map, wide_dtype(gradient.dtype())));
  };
  update.expect(step.first_moment(), "first_moment", moment_type(ElementMap::kDynamic));
  update.expect(step.second_moment(), "second_moment", moment_type(ElementMap::kDynamicUnsigned));
  if (check.has("stream")) check.fail("expected no 'stream' with moments in 8 bits, got one");
  if (step.kept > 0) check.fail("expected no 'kept' with moments in 8 bits, got one");
  if (step.is_slice)
    check.fail("expected whole moments in 8 bits, got those of rows from 'first_row' on");
}

// Moments are as wide as the parameter, or bf16, which takes a stream of draws for its roundings.
void check_moments(const Update& update) {
  const auto& [step, check, inputs, attributes] = update;
  const Operand gradient = update.gradient(),
                moments[] = {update.floating(step.first_moment(), "first_moment"),
                             update.floating(step.second_moment(), "second_moment")};
  for (const Operand& moment : moments) {
    if (step.is_slice)
      check_slice(check, gradient, moment);
    else
      check.same_shape(gradient, moment);
    if (moment.type->layout != gradient.type->layout)
      check.fail("expected moments of the gradient's layout, got " + to_string(*moment.type));
    const bool is_half = moment.dtype() == DType::kBFloat16;
    if (!is_half) check.same_dtype(gradient, moment);
    if (is_half != check.has("stream"))
      check.fail(is_half ? "expected 'stream' with moments in bf16, got none"
                         : "expected no 'stream' with moments in f32, got one");
  }
  check.same_dtype(moments[0], moments[1]);
  if (check.has("stream")) check.non_negative_int("stream");
}

void check_mask(const Update& update) {
  const OptimizerStep& step = update.step;
  if (!step.mask) return;
  const TensorType& weight = *update.gradient().type;
  update.expect(step.place_of_mask(), "mask", spec::mask_type(*step.mask, weight));
  const std::int64_t blocks = spec::num_blocks(*step.mask, weight.dim(-2), weight.dim(-1));
  if (step.kept > blocks)
    update.check.fail(fmt::format("expected at most {} blocks of a matrix to be kept, got {}",
                                  blocks, step.kept));
}

void check_scalars(const Update& update) {
  update.wide(update.step.clip_factor(), "clip_factor", 0);
  update.wide(update.step.learning_rate(), "learning_rate", 0);
  update.check.i32(static_cast<int>(update.step.step()), "step", 0);
}

// Packings of the values on a grid, as op `fake_quantize` has them.
void check_grid(const Update& update) {
  const auto& [step, check, inputs, attributes] = update;
  if (check.has("delay")) check.positive_int("delay");
  if (!check.has("grid")) {
    if (check.has("delay")) check.fail("expected 'grid' with 'delay', got none");
    return;
  }
  const auto grid = weight_grid_from_string(check.string("grid"));
  if (!grid || grid->group != kGroupOfUpdate || step.packs != Packs::kBoth ||
      inputs[0].layout != panels_layout(false))
    check.fail(
        fmt::format("expected 'grid' to be one of groups of {}, with 'packs' both of a "
                    "parameter in panels, got '{}' of {}",
                    kGroupOfUpdate, check.string("grid"), to_string(inputs[0])));
  check.multiple({"parameter", &inputs[0]}, inputs[0].ndim() - 1, grid->group,
                 "the group of " + to_string(*grid));
}

// The parameter is the first packing itself where only the second one is written.
void check_packs(const Update& update) {
  const auto& [step, check, inputs, attributes] = update;
  const TensorType& parameter = inputs[0];
  const std::string_view name = step.is_split ? "high" : "parameter";
  if (step.packs == Packs::kBoth && step.is_split)
    check.fail("expected 'packs' transposed with 'split', got both");
  if (step.packs == Packs::kTransposed && parameter.layout != panels_layout(false))
    check.fail(fmt::format("expected {} of layout panels, got {}", name, to_string(parameter)));
  if (packs_to_int8(*attributes) && (step.packs != Packs::kBoth || parameter.layout != kRowMajor ||
                                     parameter.dtype != DType::kFloat32 || check.has("grid")))
    check.fail(fmt::format(
        "expected 'packs' both of an f32 parameter in rows, off a grid, with dtype '{}', got {} of "
        "{}",
        to_string(int8_tile_format()), spec::get_string(*attributes, "packs"),
        to_string(parameter)));
  check.right_operand({name, &parameter}, false);
  if (parameter.ndim() != 2 && parameter.ndim() != 3)
    check.fail(fmt::format("expected {} to be a matrix or a stack of matrices, got {}", name,
                           to_string(parameter)));
  check_grid(update);
  if (!step.is_slice) return;
  if (!step.is_split)
    check.fail("expected no 'first_row' where a whole parameter is packed, got one");
  TensorType packed = parameter;
  packed.layout = panels_layout(true);
  update.expect(step.packing(), "packed_transposed", packed);
}

std::vector<TensorType> output_types(const Update& update) {
  const auto& [step, check, inputs, attributes] = update;
  std::vector<TensorType> types{inputs[0]};
  if (step.is_split) types.push_back(inputs[step.low()]);
  types.push_back(inputs[step.first_moment()]);
  types.push_back(inputs[step.second_moment()]);
  if (step.packs != Packs::kNone) {
    TensorType packed = step.is_split                ? inputs[0]
                        : packs_to_int8(*attributes) ? quantized(inputs[0], int8_tile_format())
                                                     : with_dtype(inputs[0], check.dtype("dtype"));
    packed.layout = panels_layout(false);
    if (step.packs == Packs::kBoth) types.push_back(packed);
    packed.layout = panels_layout(true);
    types.push_back(std::move(packed));
  }
  return types;
}

std::vector<TensorType> infer_optimizer_step(ir::Types inputs, const spec::Attributes& attributes) {
  const OptimizerStep step = spec::optimizer_step_of(attributes);
  const Check check = check_of(step, inputs, attributes);
  const Update update{step, check, inputs, &attributes};
  check_form(update);
  check_number(update);
  step.is_split ? check_halves(update) : check_whole(update);
  update.is_quantized() ? check_quantized(update) : check_moments(update);
  check_scalars(update);
  check_mask(update);
  if (step.packs != Packs::kNone) check_packs(update);
  return output_types(update);
}

// A slice reads and writes its own rows of the whole tensors; a packing is written alone. With
// blocks that are kept, no others are touched.
ir::Cost optimizer_step_cost(ir::Types inputs, ir::Types outputs,
                             const spec::Attributes& attributes) {
  const OptimizerStep step = spec::optimizer_step_of(attributes);
  const std::int64_t flops = spec::row_of(step.rule).flops_an_element;
  if (!step.is_slice && step.kept == 0) return elementwise_cost(inputs, outputs, flops);
  const std::int64_t count =
      std::llround(static_cast<double>(inputs[step.second_moment()].num_elements()) *
                   (step.kept > 0 ? spec::density_of(attributes, inputs[step.gradient()]) : 1.0));
  const auto of_rows = [&](ir::Types types) {
    std::vector<TensorType> result;
    for (const TensorType& type : types)
      result.push_back(tensor_type(type.dtype, {type.ndim() > 1 ? count : 1}));
    return result;
  };
  return elementwise_cost(of_rows(inputs.first(step.step() + 1)), of_rows(outputs), flops);
}

constexpr std::size_t kMostOutputs = 6;

constexpr std::array<int, kMostOutputs> aliases_of(const OptimizerStep& step) {
  std::array<int, kMostOutputs> inputs{};
  inputs.fill(-1);
  const auto overwrite = [&](std::size_t output, std::size_t input) {
    inputs[output] = static_cast<int>(input);
  };
  overwrite(0, 0);
  if (step.is_split) overwrite(1, step.low());
  overwrite(step.new_first_moment(), step.first_moment());
  overwrite(step.new_second_moment(), step.second_moment());
  if (step.writes_rows_of_packing()) overwrite(step.first_packing(), step.packing());
  return inputs;
}

// Planning asks for them often, so every form has its own beforehand.
ir::Aliases must_alias(const spec::Attributes& attributes) {
  constexpr std::size_t kPacks = 3;
  static constexpr auto kForms = [] {
    std::array<std::array<int, kMostOutputs>, 8 * kPacks> forms{};
    for (std::size_t i = 0; i < forms.size(); ++i) {
      spec::OptimizerStep step{.is_split = i % 2 != 0,
                               .packs = static_cast<spec::Packs>(i / 8),
                               .is_slice = i / 2 % 2 != 0};
      if (i / 4 % 2 != 0) step.mask = spec::SparsityPattern::kBlock32;
      forms[i] = aliases_of(step);
    }
    return forms;
  }();
  const spec::Packs packs = spec::packs_of(attributes);
  const bool is_split = spec::get_bool_or(attributes, "split", false);
  return kForms[8 * static_cast<std::size_t>(packs) + (attributes.contains("mask") ? 4 : 0) +
                (attributes.contains("first_row") ? 2 : 0) + (is_split ? 1 : 0)];
}

std::string form(const spec::Attributes& attributes) {
  return spec::to_string(spec::optimizer_step_of(attributes)) +
         (attributes.contains("grid") ? " to_grid" : "") +
         (packs_to_int8(attributes) ? " in_int8" : "");
}

}  // namespace

std::optional<OptimizerStep> optimizer_step_of(const ir::Node& node) {
  if (node.op != &kOptimizerStep) return std::nullopt;
  return spec::optimizer_step_of(node.attributes);
}

const ir::OpSchema kOptimizerStep{
    .name = kName,
    .min_inputs = 7,
    .max_inputs = 10,
    .num_outputs = ir::kAnyNumber,
    .signature =
        "(parameter f32 any, or with 'split' high bf16 any, low u16; gradient f32, first_moment "
        "f32, bf16 or dynamic8_f32_16x16, second_moment, clip_factor f32[], learning_rate f32[], "
        "step i32[], mask? u8, packed_transposed? of a slice) -> parameter, or high, low; "
        "first_moment, second_moment, packed?, packed_transposed?",
    .infer = infer_optimizer_step,
    .cost = optimizer_step_cost,
    .must_alias = must_alias,
    .form = form};

}  // namespace anabatic::ops
