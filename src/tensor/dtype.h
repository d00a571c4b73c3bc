// SPDX-License-Identifier: Apache-2.0
// Element types, their sizes and names, and the bfloat16 conversions that every part shares.
#pragma once
#include <bit>
#include <cstdint>
#include <optional>
#include <string_view>

namespace anabatic {

enum class DType : std::uint8_t {
  kFloat64,
  kFloat32,
  kBFloat16,
  kFloat16,
  kInt8,
  kUInt8,
  kUInt16,
  kInt32,
  kInt64,
  kBool
};

std::int64_t size_bytes(DType dtype);
std::string_view to_string(DType dtype);  // "f64 f32 bf16 f16 i8 u8 u16 i32 i64 bool"
std::optional<DType> dtype_from_string(std::string_view text);

struct BFloat16 {
  std::uint16_t bits;
};
// IEEE 754 binary16. Its conversions are those of tensor/half.h.
struct Float16 {
  std::uint16_t bits;
};

inline float to_float(BFloat16 value) {
  return std::bit_cast<float>(std::uint32_t{value.bits} << 16);
}

// Round to nearest, ties to even: activations and gradients. NaN stays NaN.
inline BFloat16 to_bfloat16(float value) {
  const auto bits = std::bit_cast<std::uint32_t>(value);
  if ((bits & 0x7FFFFFFFu) > 0x7F800000u) return {static_cast<std::uint16_t>((bits >> 16) | 0x40u)};
  return {static_cast<std::uint16_t>((bits + 0x7FFFu + ((bits >> 16) & 1u)) >> 16)};
}

// Round to nearest, ties away from zero. The bf16 copy of a weight is rounded like this, so that it
// equals the upper 16 bits of split_float.
inline BFloat16 to_bfloat16_half_away(float value) {
  const auto bits = std::bit_cast<std::uint32_t>(value);
  if ((bits & 0x7FFFFFFFu) > 0x7F800000u) return {static_cast<std::uint16_t>((bits >> 16) | 0x40u)};
  return {static_cast<std::uint16_t>((bits + 0x8000u) >> 16)};
}

// The smallest bf16 that is not below `value`, which is finite and not negative. It is the scale of
// an int8 block, so that no quantised value exceeds the largest int8.
inline BFloat16 to_bfloat16_up(float value) {
  return {static_cast<std::uint16_t>((std::bit_cast<std::uint32_t>(value) + 0xFFFFu) >> 16)};
}

}  // namespace anabatic
