// SPDX-License-Identifier: Apache-2.0
// Values in 8 bits by blocks: a code is an entry of a table of 256 values within [-1, 1], times the
// largest magnitude of its block, kept in f32. The table is the dynamic map of Dettmers et al.,
// "8-bit Optimizers via Block-wise Quantization" (2022): seven decades down from 1, of which each
// has twice as many entries, evenly spaced, as the one below.
//
//   decade d = 0..6 holds n = 2^d entries of each sign, unsigned 2^(d+1):
//   10^(d-6) · (0.1 + 0.9 · (j + 1/2) / n), j < n; besides 0 and 1
//
// Signed code: 0 is zero, 1..128 are positive ones ascending, 255..129 their negatives (there is no
// -1: its place takes -0.993). Unsigned: 0..255 ascending. Rounding is to the nearest entry; in the
// unsigned map only zero becomes 0, for a second moment of 0 would leave a first one without a
// denominator. The error of |x| in decade d is at most 0.45 · 10^(d-6) / n of the block's largest
// magnitude, and below all decades at most the smallest entry.
//
// A block is a tile of 16 rows and 16 columns of a matrix, smaller at its ends: in panels 256 bytes
// that follow one another, so codes and scales do not depend on the layout.
#pragma once
#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <cstdint>

#include "tensor/tensor_type.h"

namespace anabatic {

inline constexpr std::int64_t kBlockSide = 16;

// f32 [ceil(N/16), ceil(K/16)] or [E, ceil(N/16), ceil(K/16)] of codes [N,K] or [E,N,K], row-major.
TensorType block_scales_type(const TensorType& codes, DType dtype = DType::kFloat32);

// What code and value are computed from; arrays are padded with zeroes to the widest vector.
struct DynamicMap {
  std::array<float, 256> values;
  // By number of thresholds that |x| / scale reaches: where the decade begins, entries a unit.
  std::array<float, 16> origins, rates;
  // From one entry's decade to the next, in order; reaching the last one gives 1.
  std::array<float, 8> thresholds;
  // The threshold behind so many, for vectors: all but the last one; unsigned, 0 is the first.
  std::array<float, 16> next;
};
const DynamicMap& signed_map();
const DynamicMap& unsigned_map();

// What a block's values are multiplied with. A block below the smallest normal f32 is zero, of
// scale 0; values up to 2^126.
inline float inverse_scale(float scale) { return scale < 0x1.0p-126f ? 0.0f : 1.0f / scale; }

// The code of x. Each operation rounds once and none can be fused, so that vectors find the same
// one. NaN counts as 1.
template <bool kSigned>
std::uint8_t quantize(float x, float inverse) {
  const DynamicMap& map = kSigned ? signed_map() : unsigned_map();
  float y = std::abs(x) * inverse;
  y = y <= 1.0f ? y : 1.0f;
  int reached = (kSigned ? y >= map.thresholds[0] : std::abs(x) >= 0x1.0p-126f) ? 1 : 0;
  for (std::size_t i = 1; i < 7; ++i) reached += y >= map.thresholds[i] ? 1 : 0;
  const auto at = static_cast<std::size_t>(reached);
  const int power = 1 << reached;
  const int first = kSigned ? power >> 1 : power - 1, last = kSigned ? power - 1 : 2 * power - 2;
  int code = std::min(first + static_cast<int>((y - map.origins[at]) * map.rates[at]), last);
  if (!kSigned) return static_cast<std::uint8_t>(y >= map.thresholds[7] ? 255 : code);
  if (std::signbit(x)) return static_cast<std::uint8_t>(-code);
  return static_cast<std::uint8_t>(y >= map.thresholds[7] ? 128 : code);
}

template <bool kSigned>
float dequantize(std::uint8_t code, float scale) {
  return (kSigned ? signed_map() : unsigned_map()).values[code] * scale;
}

}  // namespace anabatic
