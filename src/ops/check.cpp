// SPDX-License-Identifier: Apache-2.0
#include "ops/check.h"

#include <algorithm>
#include <array>
#include <cmath>

#include "base/error.h"
#include "base/text.h"
#include "ops/build.h"
#include "spec/product.h"
#include "tensor/panels.h"

namespace anabatic::ops {
namespace {

bool is_floating(DType dtype) {
  return dtype == DType::kFloat32 || dtype == DType::kBFloat16 || dtype == DType::kFloat16 ||
         dtype == DType::kFloat64;
}

bool is_f16_next_to_bf16(DType gradient, const Operand& value) {
  return gradient == DType::kFloat16 && value.type->value_dtype() == DType::kBFloat16;
}

std::string described(const Operand& operand) {
  return fmt::format("{} {}", operand.name, to_string(*operand.type));
}

}  // namespace

std::int64_t Operand::dim(std::int64_t axis) const {
  const std::int64_t i = axis < 0 ? axis + type->ndim() : axis;
  ANABATIC_CHECK(i >= 0 && i < type->ndim(), "[op] axis {} of {}", axis, to_string(*type));
  return type->shape[static_cast<std::size_t>(i)];
}

Check::Check(std::string_view op, ir::Types inputs, const spec::Attributes& attributes,
             std::initializer_list<std::string_view> required,
             std::initializer_list<std::string_view> optional)
    : Check(op, inputs, attributes, std::span(required.begin(), required.size()),
            std::span(optional.begin(), optional.size())) {}

Check::Check(std::string_view op, ir::Types inputs, const spec::Attributes& attributes,
             std::span<const std::string_view> required, std::span<const std::string_view> optional)
    : op_(op), inputs_(inputs), attributes_(attributes) {
  for (const std::string_view key : required)
    if (!has(key)) fail(fmt::format("expected attribute '{}', got none", key));
  const auto holds = [](std::span<const std::string_view> keys, std::string_view key) {
    return std::find(keys.begin(), keys.end(), key) != keys.end();
  };
  for (const auto& [key, value] : attributes) {
    if (holds(required, key) || holds(optional, key)) continue;
    std::vector<std::string> known(required.begin(), required.end());
    known.insert(known.end(), optional.begin(), optional.end());
    const auto nearest = nearest_word(key, known);
    fail(fmt::format("unknown attribute '{}' = {}{}", key, spec::to_string(value),
                     nearest ? fmt::format("; did you mean '{}'?", *nearest) : std::string()));
  }
}

void Check::fail(const std::string& message) const {
  throw InvalidArgument(fmt::format("[{}] {}", op_, message));
}

Operand Check::input(int i, std::string_view name, int ndim) const {
  ANABATIC_CHECK(i >= 0 && i < num_inputs(), "[{}] input {} of {}", op_, i, num_inputs());
  const TensorType& type = inputs_[static_cast<std::size_t>(i)];
  if (ndim != kAnyNdim && type.ndim() != ndim)
    fail(fmt::format("expected {} to be {}-D, got {}", name, ndim, to_string(type)));
  return {.name = name, .type = &type};
}

Operand Check::floating(int i, std::string_view name, int ndim) const {
  const Operand operand = input(i, name, ndim);
  if (!is_floating(operand.dtype()))
    fail(fmt::format("expected {} to be f32, bf16, f16 or f64, got {}", name,
                     to_string(*operand.type)));
  return operand;
}

Operand Check::wide(int i, std::string_view name, int ndim) const {
  const Operand operand = input(i, name, ndim);
  if (operand.dtype() != DType::kFloat32 && operand.dtype() != DType::kFloat64)
    fail(fmt::format("expected {} to be f32, got {}", name, to_string(*operand.type)));
  return operand;
}

Operand Check::i32(int i, std::string_view name, int ndim) const {
  const Operand operand = input(i, name, ndim);
  if (operand.dtype() != DType::kInt32)
    fail(fmt::format("expected {} to be i32, got {}", name, to_string(*operand.type)));
  return operand;
}

Operand Check::floating_or_i32(int i, std::string_view name, int ndim) const {
  const Operand operand = input(i, name, ndim);
  return operand.dtype() == DType::kInt32 ? operand : floating(i, name, ndim);
}

Operand Check::in_int8(int i, std::string_view name, int ndim) const {
  const Operand operand = input(i, name, ndim);
  const std::optional<BlockFormat>& blocks = operand.type->blocks;
  if (!blocks || operand.dtype() != DType::kInt8 || operand.type->layout != kRowMajor ||
      *blocks != int8_format(blocks->columns, blocks->scale) || blocks->scale == DType::kFloat32)
    fail(fmt::format("expected {} to be i8_bf16_1xBLOCK of rows, got {}", name,
                     to_string(*operand.type)));
  return operand;
}

// A call makes int8 panels of these rows itself.
Operand Check::f32_rows(int i, std::string_view name, int ndim, const Operand& rows) const {
  const Operand weight = input(i, name, ndim);
  const std::string format = to_string(int8_tile_format());
  if (!has("slices") || string(spec::kPackedFormat) != format)
    fail(fmt::format("expected '{}' {} together with 'slices', got '{}'", spec::kPackedFormat,
                     format, string(spec::kPackedFormat)));
  if (weight.dtype() != DType::kFloat32 || weight.type->is_quantized() ||
      rows.dtype() != DType::kBFloat16)
    fail(fmt::format("expected bf16 {} and f32 {} together with '{}', got {} and {}", rows.name,
                     name, spec::kPackedFormat, described(rows), described(weight)));
  row_major(weight);
  return weight;
}

Operand Check::weight(int i, std::string_view name, int ndim, const Operand& rows) const {
  if (has(spec::kPackedFormat)) return f32_rows(i, name, ndim, rows);
  const auto kept = [&] {
    const Operand operand = input(i, name, ndim);
    const bool is_by_rows = operand.type->layout == kRowMajor;
    const bool is_known = is_int8_panels(*operand.type) || (is_mxfp4(*operand.type) && is_by_rows);
    return is_known ? operand : in_int8(i, name, ndim);
  };
  const Operand weight = is_quantized(i) ? kept() : floating(i, name, ndim);
  if (weight.type->value_dtype() != rows.dtype() && !is_f16_next_to_bf16(rows.dtype(), weight))
    fail(fmt::format("expected {} and {} to have one dtype, got {} and {}", rows.name, name,
                     described(rows), described(weight)));
  return weight;
}

Operand Check::f64(int i, std::string_view name, int ndim) const {
  const Operand operand = input(i, name, ndim);
  if (operand.dtype() != DType::kFloat64)
    fail(fmt::format("expected {} to be f64, got {}", name, to_string(*operand.type)));
  return operand;
}

void Check::same_dtype(const Operand& a, const Operand& b) const {
  if (a.dtype() != b.dtype())
    fail(fmt::format("expected {} and {} to have one dtype, got {} and {}", a.name, b.name,
                     described(a), described(b)));
}

void Check::same_shape(const Operand& a, const Operand& b) const {
  if (a.type->shape != b.type->shape)
    fail(fmt::format("expected {} and {} to have one shape, got {} and {}", a.name, b.name,
                     described(a), described(b)));
}

void Check::same_type(const Operand& a, const Operand& b) const {
  if (*a.type != *b.type)
    fail(fmt::format("expected {} and {} to have one type, got {} and {}", a.name, b.name,
                     described(a), described(b)));
}

void Check::same_dim(const Operand& a, std::int64_t axis_a, const Operand& b,
                     std::int64_t axis_b) const {
  if (a.dim(axis_a) != b.dim(axis_b))
    fail(fmt::format("expected dimension {} of {} to equal dimension {} of {}, got {} and {}",
                     axis_a, a.name, axis_b, b.name, described(a), described(b)));
}

void Check::size(const Operand& a, std::int64_t axis, std::int64_t expected) const {
  if (a.size(axis) != expected)
    fail(fmt::format("expected dimension {} of {} to be {}, got {}", axis, a.name, expected,
                     to_string(*a.type)));
}

void Check::multiple(const Operand& a, std::int64_t axis, std::int64_t divisor,
                     std::string_view reason) const {
  if (divisor <= 0 || a.size(axis) % divisor != 0)
    fail(fmt::format("expected dimension {} of {} to be a multiple of {} ({}), got {}", axis,
                     a.name, divisor, reason, to_string(*a.type)));
}

void Check::gradient_of(const Operand& dy, const Operand& x) const {
  same_shape(dy, x);
  gradient_dtype_of(dy, x);
}

void Check::gradient_dtype_of(const Operand& dy, const Operand& x) const {
  if (!is_f16_next_to_bf16(dy.dtype(), x)) same_dtype(dy, x);
}

void Check::row_major(const Operand& a) const {
  if (a.type->layout != kRowMajor)
    fail(fmt::format("expected {} to be row-major, got {}", a.name, to_string(*a.type)));
}

void Check::right_operand(const Operand& weight, bool transposed) const {
  const Layout packed = panels_layout(transposed);
  if (weight.type->layout != kRowMajor && weight.type->layout != packed)
    fail(fmt::format("expected {} to be row-major or of layout {}, got {}", weight.name,
                     text(packed), to_string(*weight.type)));
}

void Check::right_operand_of_gradient(const Operand& weight) const {
  if (!has("slices")) return right_operand(weight, true);
  slices();
  if (has(spec::kPackedFormat)) return;
  if (weight.type->layout != panels_layout(false) || is_int8_panels(*weight.type))
    fail(fmt::format("expected {} of layout {} together with 'slices', got {}", weight.name,
                     text(panels_layout(false)), to_string(*weight.type)));
}

void Check::check_fallback() const {
  if (const std::int64_t value = non_negative_int("fallback"); value > spec::kNoFallback)
    fail(fmt::format("expected 'fallback' from 0 to {}, got {}", spec::kNoFallback, value));
}

void Check::fallback(const Operand& weight) const {
  if (is_int8_panels(*weight.type)) return check_fallback();
  if (has("fallback"))
    fail(fmt::format("expected {} in panels of {} together with 'fallback', got {}", weight.name,
                     to_string(int8_tile_format()), to_string(*weight.type)));
}

void Check::fallback_of_gradient(const Operand& x) const {
  if (!has("fallback")) return;
  check_fallback();
  if (x.dtype() != DType::kBFloat16)
    fail(fmt::format("expected {} in bf16 together with 'fallback', got {}", x.name,
                     to_string(*x.type)));
}

std::int64_t Check::gathered_rows(const Operand& x, int row_map) const {
  if (num_inputs() <= row_map) {
    if (has("top_k")) fail("expected row_map together with 'top_k', got none");
    return x.dim(0);
  }
  const Operand rows = i32(row_map, "row_map", 1);
  const std::int64_t top_k = positive_int("top_k");
  multiple(rows, 0, top_k, "top_k");
  size(x, 0, rows.size(0) / top_k);
  return rows.dim(0);
}

namespace {

template <class T>
const T& typed_attribute(const Check& check, const spec::Attributes& attributes,
                         std::string_view key, const char* kind) {
  const auto found = attributes.find(key);
  if (found == attributes.end()) check.fail(fmt::format("expected attribute '{}', got none", key));
  const T* value = std::get_if<T>(&found->second);
  if (value == nullptr)
    check.fail(
        fmt::format("expected {} for '{}', got {}", kind, key, spec::to_string(found->second)));
  return *value;
}

}  // namespace

std::int64_t Check::positive_int(std::string_view key) const {
  const auto value = typed_attribute<std::int64_t>(*this, attributes_, key, "an integer");
  if (value <= 0) fail(fmt::format("expected '{}' > 0, got {}", key, value));
  return value;
}

std::int64_t Check::non_negative_int(std::string_view key) const {
  const auto value = typed_attribute<std::int64_t>(*this, attributes_, key, "an integer");
  if (value < 0) fail(fmt::format("expected '{}' >= 0, got {}", key, value));
  return value;
}

double Check::number(std::string_view key) const {
  const double value = typed_attribute<double>(*this, attributes_, key, "a number");
  if (!std::isfinite(value)) fail(fmt::format("expected a finite '{}', got {}", key, value));
  return value;
}

double Check::non_negative(std::string_view key) const {
  const double value = number(key);
  if (value < 0) fail(fmt::format("expected '{}' >= 0, got {}", key, value));
  return value;
}

double Check::fraction(std::string_view key) const {
  const double value = number(key);
  if (value < 0 || value >= 1) fail(fmt::format("expected '{}' in [0, 1), got {}", key, value));
  return value;
}

bool Check::flag(std::string_view key) const {
  return typed_attribute<bool>(*this, attributes_, key, "a bool");
}

const std::string& Check::string(std::string_view key) const {
  return typed_attribute<std::string>(*this, attributes_, key, "a string");
}

DType Check::dtype(std::string_view key) const {
  const std::string& name = string(key);
  const auto dtype = dtype_from_string(name);
  if (!dtype || !is_floating(*dtype))
    fail(fmt::format("expected '{}' to be f32, bf16, f16 or f64, got '{}'", key, name));
  return *dtype;
}

DType Check::dtype_or(std::string_view key, DType fallback) const {
  return has(key) ? dtype(key) : fallback;
}

DType wide_dtype(DType dtype) {
  return dtype == DType::kFloat64 ? DType::kFloat64 : DType::kFloat32;
}

TensorType with_dtype(TensorType type, DType dtype) {
  type.dtype = dtype;
  return type;
}

TensorType laid_out(const Check& check, TensorType type) {
  if (!check.has("layout")) return type;
  if (check.string("layout") != text(panels_layout(false)))
    check.fail(fmt::format("expected layout 'panels' or none, got '{}'", check.string("layout")));
  type.layout = panels_layout(false);
  return type;
}

bool is_written_into(const spec::Attributes& attributes) {
  return std::ranges::any_of(std::array{"first_row", "first_column"}, [&](const char* key) {
    return spec::get_int_or(attributes, key, 0) > 0;
  });
}

namespace {

// Becomes the type of the matrices that a weight gradient of `type` is rows of.
void place_rows(const Check& check, TensorType& type) {
  const std::int64_t first = check.non_negative_int("first_row"),
                     all = check.positive_int("of_rows");
  std::int64_t& rows = type.shape[type.shape.size() - 2];
  if (first > all || rows > all - first)
    check.fail(fmt::format("expected rows within {}, got {} from row {} on", all, rows, first));
  rows = all;
}

// The same for columns, `column_step` apart.
void place_columns(const Check& check, TensorType& type) {
  const std::int64_t first = check.non_negative_int("first_column"),
                     step = check.positive_int("column_step");
  if (first >= step)
    check.fail(fmt::format("expected first_column below column_step {}, got {}", step, first));
  type.shape.back() = product({type.shape.back(), step});
}

}  // namespace

TensorType placed(const Check& check, TensorType type, int num_others) {
  type.dtype = check.dtype_or("output_dtype", type.dtype);
  const bool is_rows = check.has("of_rows") || check.has("first_row");
  const bool is_columns = check.has("column_step") || check.has("first_column");
  if (is_rows && is_columns) check.fail("expected rows or columns of larger matrices, got both");
  if ((is_rows || is_columns) && type.layout != kRowMajor)
    check.fail("expected row-major matrices, of which it is a part");
  if (is_rows) place_rows(check, type);
  if (is_columns) place_columns(check, type);
  const bool is_into = is_written_into(check.attributes());
  const int expected = num_others + (is_into ? 1 : 0);
  if (check.num_inputs() != expected)
    check.fail(fmt::format("expected {} inputs, got {}", expected, check.num_inputs()));
  if (is_into) {
    const Operand into = check.floating(num_others, "into");
    if (*into.type != type)
      check.fail(
          fmt::format("expected into to be {}, got {}", to_string(type), to_string(*into.type)));
  }
  return type;
}

TensorType typed(DType dtype, std::initializer_list<std::int64_t> dims) {
  return {.dtype = dtype, .shape = {dims}};
}

}  // namespace anabatic::ops
