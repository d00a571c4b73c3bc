// SPDX-License-Identifier: Apache-2.0
// A float as its upper and lower 16 bits, so that a weight and its bf16 copy take four bytes
// together:
//
//   x = bits(value) + 2^15 (mod 2^32)     high = x >> 16     low = x mod 2^16
//
// A bijection of all 2^32 patterns. `high` is the value as bf16, ties away from zero, as in
// to_bfloat16_half_away. For a NaN it may be an infinity or a zero, because the payload carries
// into it. Padding of a packing has zero bytes in both parts, which is no number: it is never
// merged.
#pragma once
#include "tensor/dtype.h"

namespace anabatic {

struct SplitFloat {
  BFloat16 high;
  std::uint16_t low;
};

inline SplitFloat split_float(float value) {
  const std::uint32_t x = std::bit_cast<std::uint32_t>(value) + 0x8000u;
  return {{static_cast<std::uint16_t>(x >> 16)}, static_cast<std::uint16_t>(x & 0xFFFFu)};
}

inline float merge_float(SplitFloat halves) {
  return std::bit_cast<float>((std::uint32_t{halves.high.bits} << 16 | halves.low) - 0x8000u);
}

}  // namespace anabatic
