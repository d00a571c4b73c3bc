// SPDX-License-Identifier: Apache-2.0
// IEEE 754 binary16 to and from f32. Loops over these vectorise, and subnormals do not depend on
// whether the processor flushes them.
#pragma once
#include <bit>
#include <cmath>
#include <cstdint>

namespace anabatic {

inline float half_to_float(std::uint16_t bits) {
  const std::uint32_t sign = std::uint32_t{bits & 0x8000u} << 16, magnitude = bits & 0x7FFFu;
  const std::uint32_t subnormal = std::bit_cast<std::uint32_t>(
      static_cast<float>(static_cast<std::int32_t>(magnitude)) * 0x1p-24f);
  const std::uint32_t normal = (magnitude << 13) + (112u << 23);
  const std::uint32_t infinite = (magnitude << 13) | 0x7F800000u;  // and NaN
  const std::uint32_t finite = magnitude < 0x400u ? subnormal : normal;
  return std::bit_cast<float>(sign | (magnitude < 0x7C00u ? finite : infinite));
}

// Rounds to nearest even, and to infinity beyond the range.
inline std::uint16_t float_to_half(float value) {
  const auto bits = std::bit_cast<std::uint32_t>(value);
  const auto sign = static_cast<std::uint16_t>((bits >> 16) & 0x8000u);
  const std::uint32_t magnitude = bits & 0x7FFFFFFFu;
  if (magnitude > 0x7F800000u) return static_cast<std::uint16_t>(sign | 0x7E00u);
  constexpr std::uint32_t kOverflow = 0x477FF000u;  // 65520: rounds to 2^16
  if (magnitude >= kOverflow) return static_cast<std::uint16_t>(sign | 0x7C00u);
  constexpr std::uint32_t kSmallestNormal = 0x38800000u;  // 2^-14
  if (magnitude < kSmallestNormal) {
    // Subnormals count in units of 2^-24; the default rounding mode is to nearest even.
    const float units = std::nearbyint(std::bit_cast<float>(magnitude) * 0x1p24f);
    return static_cast<std::uint16_t>(sign | static_cast<std::uint16_t>(units));
  }
  const std::uint32_t rounded = magnitude + 0xFFFu + ((magnitude >> 13) & 1u);
  return static_cast<std::uint16_t>(sign | ((rounded - (112u << 23)) >> 13));
}

}  // namespace anabatic
