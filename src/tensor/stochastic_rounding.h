// SPDX-License-Identifier: Apache-2.0
// Stochastic rounding from f32 to bf16: the nearer neighbour is as likely as it is near, so the
// expectation is the value. Draws are a pure function of (stream, step, element): bits depend on
// neither threads nor layout. Seed and state determine the stream.
#pragma once
#include "base/philox.h"
#include "tensor/dtype.h"

namespace anabatic {

struct RoundingKey {
  std::uint32_t first, second;
};

// Computed by Philox, once for each state and step.
inline RoundingKey rounding_key(std::int64_t stream, std::int64_t step) {
  const auto id = static_cast<std::uint64_t>(stream), count = static_cast<std::uint64_t>(step);
  const PhiloxCounter words =
      philox({static_cast<std::uint32_t>(count), static_cast<std::uint32_t>(count >> 32), 0, 0},
             {static_cast<std::uint32_t>(id), static_cast<std::uint32_t>(id >> 32)});
  return {words[0], words[1]};
}

// Two draws of 16 bits for an element, which is counted in row-major order modulo 2^32. This is C.
// Wellons's lowbias32 with half of the key before it and half inside, so that two keys never give
// shifted copies of one sequence. It takes two multiplies a word, where Philox would take ten
// rounds of wide ones.
inline std::uint32_t rounding_word(RoundingKey key, std::uint32_t element) {
  std::uint32_t x = element + key.first;
  x = ((x ^ x >> 16) * 0x7FEB352Du) ^ key.second;
  x = (x ^ x >> 15) * 0x846CA68Bu;
  return x ^ x >> 16;
}

// For finite values. A value that bf16 can represent does not change.
inline BFloat16 to_bfloat16_stochastic(float value, std::uint16_t draw) {
  return {static_cast<std::uint16_t>((std::bit_cast<std::uint32_t>(value) + draw) >> 16)};
}

}  // namespace anabatic
