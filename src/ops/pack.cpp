// SPDX-License-Identifier: Apache-2.0
#include "ops/pack.h"

#include <fmt/core.h>

#include <string>
#include <utility>

#include "ops/build.h"
#include "ops/check.h"
#include "tensor/panels.h"

namespace anabatic::ops {

bool packs_to_int8(const spec::Attributes& attributes) {
  const auto dtype = attributes.find("dtype");
  return dtype != attributes.end() &&
         dtype->second == spec::Attribute(to_string(int8_tile_format()));
}

namespace {

TensorType with_layout(TensorType type, Layout layout) {
  type.layout = layout;
  return type;
}

// The transpose of columns first_column, first_column + column_step and so on.
TensorType packed_columns(const Check& check, TensorType type) {
  const std::int64_t first = check.non_negative_int("first_column"),
                     step = check.positive_int("column_step");
  const auto columns = static_cast<std::size_t>(type.ndim() - 1);
  if (first >= step || type.shape[columns] % step != 0)
    check.fail(
        fmt::format("expected columns by multiples of column_step {}, from below it on, got {} "
                    "from column {} on",
                    step, type.shape[columns], first));
  type.shape[columns] /= step;
  std::swap(type.shape[columns - 1], type.shape[columns]);
  return type;
}

// To panels of an int8 product: from rows, or the second packing from the first one, whose int8
// values it has.
TensorType in_int8_panels(const Check& check, const TensorType& from, Layout layout) {
  if (!is_panels(layout))
    check.fail(
        fmt::format("expected layout 'panels' or 'panels_transposed' together with dtype "
                    "'{}', got '{}'",
                    to_string(int8_tile_format()), check.string("layout")));
  if (from.is_quantized()) {
    if (!is_int8_panels(from) || from.layout != panels_layout(false) ||
        layout != panels_layout(true))
      check.fail(fmt::format("expected panels_transposed of {}@panels, got {} of {}",
                             to_string(int8_tile_format()), text(layout), to_string(from)));
    return with_layout(from, layout);
  }
  const Operand x = check.floating(0, "x");
  check.row_major(x);
  if (x.dtype() == DType::kFloat64)
    check.fail("expected x to be f32 or bf16, got " + to_string(*x.type));
  return with_layout(quantized(*x.type, int8_tile_format()), layout);
}

std::vector<TensorType> infer_pack(ir::Types inputs, const spec::Attributes& attributes) {
  const bool is_int8 = packs_to_int8(attributes);
  const Check check = is_int8 ? Check("pack", inputs, attributes, {"dtype", "layout"})
                              : Check("pack", inputs, attributes, {"dtype", "layout"},
                                      {"column_step", "first_column", "first_row", "rows"});
  if (is_int8) return {in_int8_panels(check, inputs[0], intern(check.string("layout")))};
  const Operand x = check.floating(0, "x");
  if (x.type->ndim() != 2 && x.type->ndim() != 3)
    check.fail("expected x to be a matrix or a stack of matrices, got " + to_string(*x.type));
  check.right_operand(x, false);
  const std::string& name = check.string("layout");
  const Layout layout = name == kRowMajorName ? kRowMajor : intern(name);
  if (layout != kRowMajor && !is_panels(layout))
    check.fail("expected layout 'panels', 'panels_transposed' or 'row_major', got '" + name + "'");
  TensorType type = with_dtype(*x.type, check.dtype("dtype"));
  type.layout = layout;
  const bool is_rows = check.has("rows") || check.has("first_row");
  const bool is_columns = check.has("column_step") || check.has("first_column");
  if (!is_rows && !is_columns) return {type};
  if (is_rows && is_columns) check.fail("expected rows or columns of each matrix, got both");
  check.row_major(x);
  if (layout == kRowMajor) check.fail("expected a packed layout for a part of each matrix");
  if (is_columns) return {packed_columns(check, type)};
  const std::int64_t first = check.non_negative_int("first_row"), rows = check.positive_int("rows");
  std::int64_t& all = type.shape[type.shape.size() - 2];
  if (first > all || rows > all - first)
    check.fail(fmt::format("expected rows within {}, got {} from row {} on", to_string(*x.type),
                           rows, first));
  all = rows;
  return {type};
}

}  // namespace

spec::Attributes packing_attributes(const TensorType& packed) {
  return {
      {"dtype",
       packed.is_quantized() ? to_string(*packed.blocks) : std::string(to_string(packed.dtype))},
      {"layout", std::string(packed.layout == kRowMajor ? kRowMajorName : text(packed.layout))}};
}

const ir::OpSchema kPack{
    .name = "pack",
    .min_inputs = 1,
    .max_inputs = 1,
    .signature = "(x [N,K] or [E,N,K]) -> like x, of the attributes' dtype and layout",
    .infer = infer_pack,
    .cost = copy_cost};

}  // namespace anabatic::ops
