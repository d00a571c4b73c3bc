// SPDX-License-Identifier: Apache-2.0
#include "support/host_tensor.h"

#include <algorithm>
#include <cstring>

#include "base/error.h"
#include "tensor/half.h"
#include "tensor/panels.h"

namespace anabatic::testing {
namespace {

constexpr std::size_t kGuard = 64;
constexpr std::byte kGuardByte{0xA5};

double load(DType dtype, const std::byte* at) {
  switch (dtype) {
    case DType::kFloat64:
      return *reinterpret_cast<const double*>(at);
    case DType::kFloat32:
      return *reinterpret_cast<const float*>(at);
    case DType::kBFloat16:
      return to_float(*reinterpret_cast<const BFloat16*>(at));
    case DType::kFloat16:
      return to_float(*reinterpret_cast<const Float16*>(at));
    case DType::kInt32:
      return *reinterpret_cast<const std::int32_t*>(at);
    case DType::kUInt16:
      return *reinterpret_cast<const std::uint16_t*>(at);
    case DType::kUInt8:
      return *reinterpret_cast<const std::uint8_t*>(at);
    case DType::kInt8:
      return *reinterpret_cast<const std::int8_t*>(at);
    default:
      throw InternalError("[host tensor] a dtype that tests do not hold");
  }
}

void store(DType dtype, std::byte* at, double value) {
  switch (dtype) {
    case DType::kFloat64:
      *reinterpret_cast<double*>(at) = value;
      return;
    case DType::kFloat32:
      *reinterpret_cast<float*>(at) = static_cast<float>(value);
      return;
    case DType::kBFloat16:
      *reinterpret_cast<BFloat16*>(at) = to_bfloat16(static_cast<float>(value));
      return;
    case DType::kFloat16:
      *reinterpret_cast<Float16*>(at) = to_float16(static_cast<float>(value));
      return;
    case DType::kInt32:
      *reinterpret_cast<std::int32_t*>(at) = static_cast<std::int32_t>(value);
      return;
    case DType::kUInt16:
      *reinterpret_cast<std::uint16_t*>(at) = static_cast<std::uint16_t>(value);
      return;
    case DType::kUInt8:
      *reinterpret_cast<std::uint8_t*>(at) = static_cast<std::uint8_t>(value);
      return;
    case DType::kInt8:
      *reinterpret_cast<std::int8_t*>(at) = static_cast<std::int8_t>(value);
      return;
    default:
      throw InternalError("[host tensor] a dtype that tests do not hold");
  }
}

// Calls body(i, offset) for the elements in row-major order: the i-th lies `offset` elements after
// the first byte. A long tensor costs no division for each.
template <class Body>
void for_elements(const TensorType& type, Body&& body) {
  if (type.layout == kRowMajor) {
    const std::int64_t count = type.num_elements();
    for (std::int64_t i = 0; i < count; ++i) body(i, i);
    return;
  }
  const PanelShape shape = panel_shape(type);
  const bool is_transposed = type.layout == panels_layout(true);
  const std::int64_t rows = type.dim(-2), columns = type.dim(-1),
                     matrix_elements = std::max<std::int64_t>(rows * columns, 1),
                     matrices = type.num_elements() / matrix_elements;
  std::int64_t i = 0;
  for (std::int64_t matrix = 0; matrix < matrices; ++matrix)
    for (std::int64_t row = 0; row < rows; ++row)
      for (std::int64_t column = 0; column < columns; ++column)
        body(i++, matrix * shape.num_elements() +
                      (is_transposed ? shape.offset(column, row) : shape.offset(row, column)));
}

}  // namespace

GuardedBytes::GuardedBytes(std::size_t size)
    : storage_(new std::byte[size + 3 * kGuard]), size_(size) {
  std::memset(storage_.get(), static_cast<int>(kGuardByte), size + 3 * kGuard);
  const auto address = reinterpret_cast<std::uintptr_t>(storage_.get()) + kGuard;
  data_ = storage_.get() + kGuard + (kGuard - address % kGuard) % kGuard;
  if (size > 0) std::memset(data_, 0, size);
}

void GuardedBytes::poison() const {
  if (size_ > 0) std::memset(data_, 0xFF, size_);
}

bool GuardedBytes::guards_intact() const {
  for (std::size_t i = 1; i <= kGuard; ++i)
    if (data_[-static_cast<std::ptrdiff_t>(i)] != kGuardByte) return false;
  for (std::size_t i = 0; i < kGuard; ++i)
    if (data_[size_ + i] != kGuardByte) return false;
  return true;
}

HostTensor::HostTensor(TensorType type)
    : type_(std::make_unique<TensorType>(std::move(type))),
      num_elements_(type_->num_elements()),
      bytes_(static_cast<std::size_t>(type_->num_bytes())) {}

HostTensor::HostTensor(const Values& values) : HostTensor(values.type) {
  const std::int64_t count = size();
  if (type_->layout == kRowMajor && type_->dtype == DType::kFloat32) {  // what long tensors are
    std::copy_n(values.data.begin(), count, view().as<float>());
    return;
  }
  if (is_mxfp4(*type_)) {
    for (std::int64_t i = 0; i < count; ++i) set(i, values.data[static_cast<std::size_t>(i)]);
    return;
  }
  const DType dtype = type_->dtype;
  const std::int64_t width = size_bytes(dtype);
  for_elements(*type_, [&](std::int64_t i, std::int64_t offset) {
    store(dtype, view().data + offset * width, values.data[static_cast<std::size_t>(i)]);
  });
  for (std::int64_t i = num_elements_; i < count; ++i)
    set(i, values.data[static_cast<std::size_t>(i)]);
  if (is_int8_panels(*type_)) sum_lines();
}

void HostTensor::sum_lines() const {
  const PanelShape shape = panel_shape(*type_);
  const std::int64_t blocks = ceil_div(shape.depth, kInt8Tile);
  for (std::int64_t i = 0; i < element_bytes(*type_); ++i) {
    const std::int64_t panel = i / shape.panel_elements(),
                       unit = i % shape.panel_elements() / shape.unit_depth,
                       block = unit / kPanelColumns * shape.unit_depth / kInt8Tile;
    view().compensations()[(panel * blocks + block) * kPanelColumns + unit % kPanelColumns] -=
        128 * view().as<const std::int8_t>()[i];
  }
}

std::int64_t HostTensor::size() const {
  return num_elements_ + (type_->is_quantized() ? scales_type(*type_).num_elements() : 0);
}

HostTensor::Place HostTensor::place(std::int64_t i) const {
  const std::int64_t scale = i - num_elements_;
  if (scale < 0 && is_mxfp4(*type_))
    return {DType::kUInt8, view().data + i / 2, static_cast<int>(i % 2 * 4)};
  if (scale < 0)
    return {type_->dtype, view().data + element_offset(*type_, i) * size_bytes(type_->dtype)};
  const DType dtype = type_->blocks->scale;
  return {dtype, view().scales<std::byte>() + scale * size_bytes(dtype)};
}

std::span<const std::byte> HostTensor::value_bytes(std::int64_t i) const {
  const Place at = place(i);
  return {at.data, static_cast<std::size_t>(size_bytes(at.dtype))};
}

double HostTensor::get(std::int64_t i) const {
  const Place at = place(i);
  if (at.shift >= 0) return std::to_integer<int>(*at.data >> at.shift & std::byte{15});
  return load(at.dtype, at.data);
}

void HostTensor::set(std::int64_t i, double value) {
  const Place at = place(i);
  if (at.shift < 0) return store(at.dtype, at.data, value);
  *at.data &= std::byte{0xF0} >> at.shift;
  *at.data |= static_cast<std::byte>(value) << at.shift;
}

Values HostTensor::values() const {
  Values result{.type = type()};
  const std::int64_t count = size();
  result.data.resize(static_cast<std::size_t>(count));
  if (type_->layout == kRowMajor && type_->dtype == DType::kFloat32) {
    std::copy_n(view().as<float>(), count, result.data.begin());
    return result;
  }
  if (is_mxfp4(*type_)) {
    for (std::int64_t i = 0; i < count; ++i) result.data[static_cast<std::size_t>(i)] = get(i);
    return result;
  }
  const DType dtype = type_->dtype;
  const std::int64_t width = size_bytes(dtype);
  for_elements(*type_, [&](std::int64_t i, std::int64_t offset) {
    result.data[static_cast<std::size_t>(i)] = load(dtype, view().data + offset * width);
  });
  for (std::int64_t i = num_elements_; i < count; ++i)
    result.data[static_cast<std::size_t>(i)] = get(i);
  return result;
}

bool HostTensor::padding_is_zero() const {
  if (type_->layout == kRowMajor) return true;
  const PanelShape shape = panel_shape(*type_);
  const std::int64_t stored = stored_elements(*type_), width = size_bytes(type_->dtype),
                     unit_elements = kPanelColumns * shape.unit_depth;
  // By matrix, panel, units of all columns; in one by column and place in the unit.
  for (std::int64_t begin = 0; begin < stored; begin += unit_elements) {
    const std::int64_t first_column =
                           begin / shape.panel_elements() % shape.num_panels() * kPanelColumns,
                       first_k = begin % shape.panel_elements() / kPanelColumns;
    if (first_column + kPanelColumns <= shape.columns && first_k + shape.unit_depth <= shape.depth)
      continue;
    for (std::int64_t i = 0; i < unit_elements; ++i) {
      if (first_column + i / shape.unit_depth < shape.columns &&
          first_k + i % shape.unit_depth < shape.depth)
        continue;
      const std::byte* element = view().data + (begin + i) * width;
      if (std::any_of(element, element + width, [](std::byte b) { return b != std::byte{0}; }))
        return false;
    }
  }
  return true;
}

HostTensor HostTensor::clone() const {
  HostTensor copy(type());
  if (bytes_.size() > 0) std::memcpy(copy.bytes_.data(), bytes_.data(), bytes_.size());
  return copy;
}

bool HostTensor::same_bits(const HostTensor& other) const {
  if (type() != other.type()) return false;
  const auto equal = [&](std::size_t begin, std::size_t end) {
    return begin == end ||
           std::memcmp(bytes_.data() + begin, other.bytes_.data() + begin, end - begin) == 0;
  };
  if (!type().is_quantized()) return equal(0, bytes_.size());
  const auto elements = static_cast<std::size_t>(elements_type(type()).num_bytes());
  const auto scales = static_cast<std::size_t>(scales_offset(type()));
  const auto end_of_scales = scales + static_cast<std::size_t>(scales_type(type()).num_bytes());
  return equal(0, elements) && equal(scales, end_of_scales) &&
         (!is_int8_panels(type()) ||
          equal(static_cast<std::size_t>(compensations_offset(type())), bytes_.size()));
}

DType dtype_at(const TensorType& type, std::size_t i) {
  return static_cast<std::int64_t>(i) < type.num_elements() ? type.dtype : type.blocks->scale;
}

bool is_float(DType dtype) {
  return dtype == DType::kFloat64 || dtype == DType::kFloat32 || dtype == DType::kBFloat16 ||
         dtype == DType::kFloat16;
}

TensorType with_dtype(TensorType type, DType dtype) {
  type.dtype = dtype;
  return type;
}

}  // namespace anabatic::testing
