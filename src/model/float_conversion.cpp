// SPDX-License-Identifier: Apache-2.0
#include "model/float_conversion.h"

#include <bit>
#include <cmath>
#include <cstring>
#include <limits>

#include "base/error.h"

namespace anabatic::model {
namespace {

// Elements need not be aligned in a file.
template <class T>
T load(const std::byte* bytes, std::size_t i) {
  T value;
  std::memcpy(&value, bytes + i * sizeof(T), sizeof(T));
  return value;
}

template <class T>
void store(std::byte* bytes, std::size_t i, T value) {
  std::memcpy(bytes + i * sizeof(T), &value, sizeof(T));
}

}  // namespace

bool is_weight_dtype(DType dtype) {
  return dtype == DType::kFloat64 || dtype == DType::kFloat32 || dtype == DType::kBFloat16 ||
         dtype == DType::kFloat16;
}

float half_to_float(std::uint16_t bits) {
  const std::uint32_t sign = std::uint32_t{bits & 0x8000u} << 16;
  const std::uint32_t exponent = (bits >> 10) & 0x1Fu, mantissa = bits & 0x3FFu;
  if (exponent == 0x1F) return std::bit_cast<float>(sign | 0x7F800000u | (mantissa << 13));
  if (exponent != 0)
    return std::bit_cast<float>(sign | ((exponent + 112) << 23) | (mantissa << 13));
  const float magnitude = std::ldexp(static_cast<float>(mantissa), -24);
  return sign != 0 ? -magnitude : magnitude;
}

std::uint16_t float_to_half(float value) {
  const auto bits = std::bit_cast<std::uint32_t>(value);
  const auto sign = static_cast<std::uint16_t>((bits >> 16) & 0x8000u);
  const std::uint32_t magnitude = bits & 0x7FFFFFFFu;
  if (magnitude > 0x7F800000u) return static_cast<std::uint16_t>(sign | 0x7E00u);
  constexpr std::uint32_t kOverflow = 0x477FF000u;  // 65520: rounds to 2^16
  if (magnitude >= kOverflow) return static_cast<std::uint16_t>(sign | 0x7C00u);
  constexpr std::uint32_t kSmallestNormal = 0x38800000u;  // 2^-14
  if (magnitude < kSmallestNormal) {
    // Subnormals count in units of 2^-24; the default rounding mode is to nearest even.
    const float units = std::nearbyint(std::ldexp(std::bit_cast<float>(magnitude), 24));
    return static_cast<std::uint16_t>(sign | static_cast<std::uint16_t>(units));
  }
  const std::uint32_t rounded = magnitude + 0xFFFu + ((magnitude >> 13) & 1u);
  return static_cast<std::uint16_t>(sign | ((rounded - (112u << 23)) >> 13));
}

void to_floats(DType dtype, std::span<const std::byte> bytes, std::span<float> values) {
  ANABATIC_CHECK(is_weight_dtype(dtype) &&
                     bytes.size() == values.size() * static_cast<std::size_t>(size_bytes(dtype)),
                 "[weights] {} bytes of {} for {} values", bytes.size(), to_string(dtype),
                 values.size());
  const std::byte* from = bytes.data();
  const std::size_t count = values.size();
  if (count == 0) return;
  if (dtype == DType::kFloat32) std::memcpy(values.data(), from, bytes.size());
  if (dtype == DType::kFloat64)
    for (std::size_t i = 0; i < count; ++i) values[i] = static_cast<float>(load<double>(from, i));
  if (dtype == DType::kBFloat16)
    for (std::size_t i = 0; i < count; ++i)
      values[i] = to_float(BFloat16{load<std::uint16_t>(from, i)});
  if (dtype == DType::kFloat16)
    for (std::size_t i = 0; i < count; ++i) values[i] = half_to_float(load<std::uint16_t>(from, i));
}

void from_floats(DType dtype, std::span<const float> values, std::span<std::byte> bytes) {
  ANABATIC_CHECK(is_weight_dtype(dtype) &&
                     bytes.size() == values.size() * static_cast<std::size_t>(size_bytes(dtype)),
                 "[weights] {} bytes of {} for {} values", bytes.size(), to_string(dtype),
                 values.size());
  std::byte* to = bytes.data();
  const std::size_t count = values.size();
  if (count == 0) return;
  if (dtype == DType::kFloat32) std::memcpy(to, values.data(), bytes.size());
  if (dtype == DType::kFloat64)
    for (std::size_t i = 0; i < count; ++i) store(to, i, static_cast<double>(values[i]));
  if (dtype == DType::kBFloat16)
    for (std::size_t i = 0; i < count; ++i) store(to, i, to_bfloat16(values[i]).bits);
  if (dtype == DType::kFloat16)
    for (std::size_t i = 0; i < count; ++i) store(to, i, float_to_half(values[i]));
}

}  // namespace anabatic::model
