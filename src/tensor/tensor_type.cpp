// SPDX-License-Identifier: Apache-2.0
#include "tensor/tensor_type.h"

#include <charconv>

#include "base/error.h"
#include "base/rounding.h"
#include "tensor/panels.h"

namespace anabatic {
namespace {

constexpr std::int64_t kMaxElements = std::int64_t{1} << 62;

std::int64_t parse_dim(std::string_view text, std::string_view whole) {
  std::int64_t dim = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), dim);
  ANABATIC_REQUIRE(error == std::errc{} && end == text.data() + text.size() && dim >= 0,
                   "[tensor type] expected a size, got '{}' in '{}'", text, whole);
  return dim;
}

// Not ceil_div: sizes and blocks from text may be so large that their sum overflows.
std::int64_t num_blocks(std::int64_t size, std::int64_t block) {
  return size == 0 ? 0 : (size - 1) / block + 1;
}

// Rows of blocks.
std::int64_t scale_rows(const TensorType& type) {
  return num_blocks(type.dim(-2), type.blocks->rows);
}

void require_blocks(const TensorType& type) {
  ANABATIC_REQUIRE(
      type.ndim() == 2 || type.ndim() == 3,
      "[tensor type] expected a matrix or a stack of matrices of a block format, got {}",
      to_string(type));
  const BlockFormat& format = *type.blocks;
  ANABATIC_REQUIRE(elements_per_unit(format.map) == 1 || type.dim(-1) % format.columns == 0,
                   "[tensor type] expected rows of a multiple of {} elements, got {}",
                   format.columns, to_string(type));
}

void require_scales(const TensorType& type) {
  ANABATIC_CHECK(type.is_quantized() && type.ndim() >= 2, "[tensor type] {} has no scales",
                 to_string(type));
}

std::int64_t num_scales(const TensorType& type) {
  require_scales(type);
  std::int64_t count = scale_rows(type) * scale_columns(type);
  for (std::int64_t axis = 0; axis < type.ndim() - 2; ++axis) count *= type.dim(axis);
  return count;
}

// Empty where the stack is.
std::int64_t compensation_bytes(const TensorType& type) {
  if (type.num_elements() == 0) return 0;
  const PanelShape shape = panel_shape(type);
  const std::int64_t matrices = type.ndim() == 3 ? type.dim(0) : 1;
  return matrices * shape.num_panels() * num_blocks(shape.depth, kInt8Tile) * kPanelColumns *
         size_bytes(DType::kInt32);
}

}  // namespace

std::int64_t TensorType::dim(std::int64_t axis) const {
  const std::int64_t i = axis < 0 ? axis + ndim() : axis;
  ANABATIC_CHECK(i >= 0 && i < ndim(), "[tensor type] axis {} of {}", axis, to_string(*this));
  return shape[static_cast<std::size_t>(i)];
}

std::int64_t TensorType::num_elements() const {
  std::int64_t count = 1;
  for (const std::int64_t size : shape)
    ANABATIC_REQUIRE(!__builtin_mul_overflow(count, size, &count) && count <= kMaxElements,
                     "[tensor type] {} has more than 2^62 elements", to_string(*this));
  return count;
}

std::int64_t element_bytes(const TensorType& type) {
  std::int64_t count = type.num_elements();
  if (type.layout != kRowMajor && is_panels(type.layout)) {
    ANABATIC_REQUIRE(type.ndim() >= 2 && count <= kMaxElements / 64,
                     "[tensor type] {} is not a matrix that can be packed", to_string(type));
    // The size of a matrix may overflow where the stack is empty.
    if (count > 0) count = count / (type.dim(-2) * type.dim(-1)) * panel_shape(type).num_elements();
  }
  ANABATIC_REQUIRE(count <= kMaxElements / size_bytes(type.dtype),
                   "[tensor type] {} has more than 2^62 bytes", to_string(type));
  if (type.is_quantized()) count /= elements_per_unit(type.blocks->map);
  return count * size_bytes(type.dtype);
}

std::int64_t TensorType::num_bytes() const {
  if (!is_quantized()) return element_bytes(*this);
  ANABATIC_REQUIRE(num_elements() <= kMaxElements / 64, "[tensor type] {} has more than 2^62 bytes",
                   to_string(*this));
  if (is_int8_panels(*this)) return compensations_offset(*this) + compensation_bytes(*this);
  return scales_offset(*this) + num_scales(*this) * size_bytes(blocks->scale);
}

TensorType quantized(TensorType type, const BlockFormat& format) {
  type.dtype = element_dtype(format.map);
  type.blocks = format;
  require_blocks(type);
  return type;
}

TensorType elements_type(TensorType type) {
  if (type.is_quantized() && elements_per_unit(type.blocks->map) > 1)
    type.shape.back() /= elements_per_unit(type.blocks->map);
  type.blocks.reset();
  return type;
}

TensorType scales_type(const TensorType& type) {
  require_scales(type);
  TensorType scales{.dtype = type.blocks->scale, .shape = type.shape};
  scales.shape[scales.shape.size() - 2] = scale_rows(type);
  scales.shape.back() = scale_columns(type);
  return scales;
}

std::int64_t scales_offset(const TensorType& type) {
  return round_up(element_bytes(type), kScalesAlignment);
}

std::int64_t scale_columns(const TensorType& type) {
  return num_blocks(type.dim(-1), type.blocks->columns);
}

bool is_int8_panels(const TensorType& type) {
  return type.blocks == int8_tile_format() && is_panels(type.layout);
}

std::int64_t compensations_offset(const TensorType& type) {
  ANABATIC_CHECK(is_int8_panels(type), "[tensor type] {} has no compensations", to_string(type));
  return round_up(scales_offset(type) + num_scales(type) * size_bytes(type.blocks->scale),
                  kScalesAlignment);
}

TensorType tensor_type(DType dtype, std::vector<std::int64_t> shape) {
  return {.dtype = dtype, .shape = std::move(shape)};
}

std::string to_string(const TensorType& type) {
  std::string out =
      type.is_quantized() ? to_string(*type.blocks) : std::string(to_string(type.dtype));
  out += '[';
  for (std::size_t i = 0; i < type.shape.size(); ++i) {
    if (i > 0) out += ',';
    out += std::to_string(type.shape[i]);
  }
  out += ']';
  if (type.layout != kRowMajor) out += fmt::format("@{}", text(type.layout));
  return out;
}

TensorType parse_tensor_type(std::string_view whole) {
  const auto open = whole.find('[');
  const auto close = whole.find(']');
  ANABATIC_REQUIRE(
      open != std::string_view::npos && close != std::string_view::npos && open < close,
      "[tensor type] expected DTYPE[SIZES], got '{}'", whole);
  TensorType type;
  if (const auto dtype = dtype_from_string(whole.substr(0, open))) {
    type.dtype = *dtype;
  } else {
    type.blocks = block_format_from_string(whole.substr(0, open));
    ANABATIC_REQUIRE(type.is_quantized(), "[tensor type] unknown dtype '{}' in '{}'",
                     whole.substr(0, open), whole);
    type.dtype = element_dtype(type.blocks->map);
  }
  std::string_view sizes = whole.substr(open + 1, close - open - 1);
  while (!sizes.empty()) {
    const auto comma = sizes.find(',');
    type.shape.push_back(parse_dim(sizes.substr(0, comma), whole));
    ANABATIC_REQUIRE(comma + 1 != sizes.size(), "[tensor type] expected a size after ',' in '{}'",
                     whole);
    sizes = comma == std::string_view::npos ? std::string_view{} : sizes.substr(comma + 1);
  }
  const std::string_view rest = whole.substr(close + 1);
  if (!rest.empty()) {
    ANABATIC_REQUIRE(rest.size() > 1 && rest[0] == '@',
                     "[tensor type] expected '@LAYOUT' after ']', got '{}'", whole);
    type.layout = intern(rest.substr(1));
  }
  if (type.is_quantized()) require_blocks(type);
  return type;
}

}  // namespace anabatic
