// SPDX-License-Identifier: Apache-2.0
// Values that are not negative as u8 values, with m / 255 as scale of a block (ARCHITECTURE.md,
// "int8 products").
#pragma once
#include "kernels/cpu/codes_math.h"
#include "kernels/cpu/int8/lines.h"
#include "tensor/largest_int8.h"

namespace anabatic::kernels::cpu::ANABATIC_ISA {

inline constexpr int kBlockVectors = kInt8Block / kLanes;

// A block, zeroes beyond its end. Returns the scale.
ANABATIC_INLINE BFloat16 code_unsigned_block(const Floats (&x)[kBlockVectors], std::int8_t* codes) {
  Ints largest{};
#pragma GCC unroll 32
  for (const Floats& value : x) largest = larger(largest, magnitude(value));
  const BlockScale block = scale_of(largest_lane(largest), kLargestUInt8);
#pragma GCC unroll 32
  for (int v = 0; v < kBlockVectors; v += 2)
    store_codes(codes + v * kLanes, static_cast<const float*>(nullptr), Pair{x[v], x[v + 1]},
                block.inverse);
  return block.scale;
}

}  // namespace anabatic::kernels::cpu::ANABATIC_ISA
