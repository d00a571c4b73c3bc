// SPDX-License-Identifier: Apache-2.0
#include "support/host_tensor.h"

#include <algorithm>
#include <cstring>

#include "base/error.h"
#include "tensor/panels.h"

namespace anabatic::testing {
namespace {

constexpr std::size_t kGuard = 64;
constexpr std::byte kGuardByte{0xA5};

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
      bytes_(static_cast<std::size_t>(type_->num_bytes())) {}

HostTensor::HostTensor(const Values& values) : HostTensor(values.type) {
  const std::int64_t count = size();
  if (type_->layout == kRowMajor && type_->dtype == DType::kFloat32) {  // what long tensors are
    std::copy_n(values.data.begin(), count, view().as<float>());
    return;
  }
  for (std::int64_t i = 0; i < count; ++i) set(i, values.data[static_cast<std::size_t>(i)]);
}

double HostTensor::get(std::int64_t i) const {
  i = element_offset(*type_, i);
  const TensorView v = view();
  switch (type_->dtype) {
    case DType::kFloat64:
      return v.as<double>()[i];
    case DType::kFloat32:
      return v.as<float>()[i];
    case DType::kBFloat16:
      return to_float(v.as<BFloat16>()[i]);
    case DType::kInt32:
      return v.as<std::int32_t>()[i];
    case DType::kUInt16:
      return v.as<std::uint16_t>()[i];
    case DType::kUInt8:
      return v.as<std::uint8_t>()[i];
    case DType::kInt8:
      return v.as<std::int8_t>()[i];
    default:
      throw InternalError("[host tensor] a dtype that tests do not hold");
  }
}

void HostTensor::set(std::int64_t i, double value) {
  i = element_offset(*type_, i);
  const TensorView v = view();
  switch (type_->dtype) {
    case DType::kFloat64:
      v.as<double>()[i] = value;
      return;
    case DType::kFloat32:
      v.as<float>()[i] = static_cast<float>(value);
      return;
    case DType::kBFloat16:
      v.as<BFloat16>()[i] = to_bfloat16(static_cast<float>(value));
      return;
    case DType::kInt32:
      v.as<std::int32_t>()[i] = static_cast<std::int32_t>(value);
      return;
    case DType::kUInt16:
      v.as<std::uint16_t>()[i] = static_cast<std::uint16_t>(value);
      return;
    case DType::kUInt8:
      v.as<std::uint8_t>()[i] = static_cast<std::uint8_t>(value);
      return;
    case DType::kInt8:
      v.as<std::int8_t>()[i] = static_cast<std::int8_t>(value);
      return;
    default:
      throw InternalError("[host tensor] a dtype that tests do not hold");
  }
}

Values HostTensor::values() const {
  Values result{.type = type()};
  const std::int64_t count = size();
  result.data.resize(static_cast<std::size_t>(count));
  if (type_->layout == kRowMajor && type_->dtype == DType::kFloat32) {
    std::copy_n(view().as<float>(), count, result.data.begin());
    return result;
  }
  for (std::int64_t i = 0; i < count; ++i) result.data[static_cast<std::size_t>(i)] = get(i);
  return result;
}

bool HostTensor::padding_is_zero() const {
  if (type_->layout == kRowMajor) return true;
  const std::int64_t stored = stored_elements(*type_), width = size_bytes(type_->dtype);
  std::vector<bool> is_padding(static_cast<std::size_t>(stored), true);
  for (std::int64_t i = 0; i < size(); ++i)
    is_padding[static_cast<std::size_t>(element_offset(*type_, i))] = false;
  for (std::int64_t i = 0; i < stored * width; ++i)
    if (is_padding[static_cast<std::size_t>(i / width)] && view().data[i] != std::byte{0})
      return false;
  return true;
}

HostTensor HostTensor::clone() const {
  HostTensor copy(type());
  if (bytes_.size() > 0) std::memcpy(copy.bytes_.data(), bytes_.data(), bytes_.size());
  return copy;
}

bool HostTensor::same_bits(const HostTensor& other) const {
  return type() == other.type() &&
         (bytes_.size() == 0 ||
          std::memcmp(bytes_.data(), other.bytes_.data(), bytes_.size()) == 0);
}

bool is_float(DType dtype) {
  return dtype == DType::kFloat64 || dtype == DType::kFloat32 || dtype == DType::kBFloat16;
}

TensorType with_dtype(TensorType type, DType dtype) {
  type.dtype = dtype;
  return type;
}

}  // namespace anabatic::testing
