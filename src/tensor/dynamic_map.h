// SPDX-License-Identifier: Apache-2.0
// Block-wise quantisation to 8 bits: a quantised value is an index into a table of 256 values
// within [-1, 1]. Each is multiplied by the largest magnitude of its block, the scale, kept in f32.
// The table is the dynamic map of Dettmers et al., "8-bit Optimizers via Block-wise Quantization"
// (2022). It has seven decades down from 1. Each has twice as many entries, evenly spaced, as the
// one below.
//
//   decade d = 0..6 holds n = 2^d entries of each sign, unsigned 2^(d+1):
//   10^(d-6) · (0.1 + 0.9 · (j + 1/2) / n), j < n; besides 0 and 1
//
// Signed index: 0 is zero, 1..128 are positive values ascending, 255..129 their negatives. There is
// no -1; its place takes -0.993. Unsigned index: 0..255 ascending. Rounding is to the nearest
// entry.
// In the unsigned map only zero becomes 0: a second moment of 0 would leave a first moment without
// a denominator. The error of |x| in decade d is at most 0.45 · 10^(d-6) / n of the block's largest
// magnitude. Below all decades it is at most the smallest entry.
//
// A block is a tile of 16 rows and 16 columns of a matrix, smaller at its edges. In panels it is
// 256 contiguous bytes, so quantised values and scales do not depend on the layout.
#pragma once
#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <cstdint>

#include "tensor/tensor_type.h"

namespace anabatic {

inline constexpr std::int64_t kBlockSide = 16;

// The format of moments; `map` is one of the two dynamic ones.
constexpr BlockFormat moment_format(ElementMap map, DType scale = DType::kFloat32) {
  return {.map = map, .scale = scale, .rows = kBlockSide, .columns = kBlockSide};
}

// The tables of both directions; arrays are padded with zeroes to the widest vector.
struct DynamicMap {
  std::array<float, 256> values;
  // Indexed by the number of thresholds that |x| / scale reaches: the decade's begin, and its
  // entries per unit.
  std::array<float, 16> origins, rates;
  // Between one entry's decade and the next, ascending; reaching the last one gives 1.
  std::array<float, 8> thresholds;
  // For vectors: the next threshold after so many, all but the last one; unsigned, 0 is the first.
  std::array<float, 16> next;
};
const DynamicMap& signed_map();
const DynamicMap& unsigned_map();

// The factor for a block's values. A block below the smallest normal f32 counts as zero and has
// scale 0. Values may be up to 2^126.
inline float inverse_scale(float scale) { return scale < 0x1.0p-126f ? 0.0f : 1.0f / scale; }

// The quantised value of x. Each operation rounds once and none can be fused, so that vector code
// gives the same one. NaN counts as 1.
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
