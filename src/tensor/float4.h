// SPDX-License-Identifier: Apache-2.0
// Elements of MXFP4: floats of 2 exponent bits and a mantissa bit (E2M1), with the sign above, and
// powers of two as their scales (E8M0).
#pragma once
#include <cstdint>

namespace anabatic {

// Twice the values of the 16 elements, so that they are integers. Not inline: objects for an
// instruction set have no symbols in common.
constexpr float kFloat4Doubled[16] = {0, 1, 2, 3, 4, 6, 8, 12, -0.0f, -1, -2, -3, -4, -6, -8, -12};

// 2^(scale - 128), the scale of doubled values, as a product of two powers that are normal floats:
// values have the same bits where denormals are zero. For large scales the first power is 1.
struct E8M0Powers {
  float first, second;
};
constexpr E8M0Powers powers_of_e8m0(std::uint8_t scale) {
  constexpr std::uint8_t kSmall = 64;
  const bool is_small = scale < kSmall;
  const std::uint32_t exponent = is_small ? scale + 63u : scale - 1u;
  return {is_small ? 0x1p-64f : 1.0f, __builtin_bit_cast(float, exponent << 23)};
}

// A value is exact in bf16 too, unless it is too large for both.
constexpr float float4_value(unsigned element, std::uint8_t scale) {
  const E8M0Powers powers = powers_of_e8m0(scale);
  return kFloat4Doubled[element] * powers.first * powers.second;
}

// Element i of a row of pairs.
constexpr unsigned float4_at(const std::uint8_t* pairs, std::int64_t i) {
  return pairs[i / 2] >> (i % 2 * 4) & 15u;
}

}  // namespace anabatic
