// SPDX-License-Identifier: Apache-2.0
// IEEE 754 binary16 to and from f32, with the bits of the instructions of F16C. Loops over these
// vectorise, and subnormals do not depend on whether the processor flushes those of f32. Always
// inline, for sources of several instruction sets call them.
#pragma once
#include <bit>
#include <cstdint>

#include "tensor/dtype.h"

namespace anabatic {

__attribute__((always_inline)) inline float half_to_float(std::uint16_t bits) {
  const std::uint32_t sign = std::uint32_t{bits & 0x8000u} << 16, magnitude = bits & 0x7FFFu;
  const std::uint32_t subnormal = std::bit_cast<std::uint32_t>(
      static_cast<float>(static_cast<std::int32_t>(magnitude)) * 0x1p-24f);
  const std::uint32_t normal = (magnitude << 13) + (112u << 23);
  const std::uint32_t quiet = magnitude > 0x7C00u ? 0x400000u : 0u;
  const std::uint32_t infinite = (magnitude << 13) | 0x7F800000u | quiet;  // and NaN
  const std::uint32_t finite = magnitude < 0x400u ? subnormal : normal;
  return std::bit_cast<float>(sign | (magnitude < 0x7C00u ? finite : infinite));
}

// Rounds to nearest even, and to infinity beyond the range. A NaN keeps its upper bits.
__attribute__((always_inline)) inline std::uint16_t float_to_half(float value) {
  const auto bits = std::bit_cast<std::uint32_t>(value);
  const std::uint32_t sign = (bits >> 16) & 0x8000u, magnitude = bits & 0x7FFFFFFFu;
  // Subnormals count in units of 2^-24, the last place of a float from 0.5 to 1.
  constexpr float kHalf = 0.5f;
  const std::uint32_t subnormal =
      std::bit_cast<std::uint32_t>(std::bit_cast<float>(magnitude) + kHalf) -
      std::bit_cast<std::uint32_t>(kHalf);
  const std::uint32_t normal = (magnitude + 0xFFFu + ((magnitude >> 13) & 1u) - (112u << 23)) >> 13;
  const std::uint32_t nan = 0x7E00u | ((magnitude >> 13) & 0x3FFu);
  constexpr std::uint32_t kOverflow = 0x477FF000u;        // 65520: rounds to 2^16
  constexpr std::uint32_t kSmallestNormal = 0x38800000u;  // 2^-14
  const std::uint32_t finite = magnitude < kSmallestNormal ? subnormal : normal;
  const std::uint32_t infinite = magnitude > 0x7F800000u ? nan : 0x7C00u;
  return static_cast<std::uint16_t>(sign | (magnitude < kOverflow ? finite : infinite));
}

__attribute__((always_inline)) inline float to_float(Float16 value) {
  return half_to_float(value.bits);
}
__attribute__((always_inline)) inline Float16 to_float16(float value) {
  return {float_to_half(value)};
}

}  // namespace anabatic
