// SPDX-License-Identifier: Apache-2.0
// f32 to bf16 with the upper neighbour as likely as the value is near to it, so that a mean of many
// roundings is the value. Draws are a pure function of (stream, step, element): bits depend on
// neither threads nor layout. A stream is named by seed and state.
#pragma once
#include "base/philox.h"
#include "tensor/dtype.h"

namespace anabatic {

struct RoundingKey {
  std::uint32_t first, second;
};

// By Philox, once a state and step.
inline RoundingKey rounding_key(std::int64_t stream, std::int64_t step) {
  const auto id = static_cast<std::uint64_t>(stream), count = static_cast<std::uint64_t>(step);
  const PhiloxCounter words =
      philox({static_cast<std::uint32_t>(count), static_cast<std::uint32_t>(count >> 32), 0, 0},
             {static_cast<std::uint32_t>(id), static_cast<std::uint32_t>(id >> 32)});
  return {words[0], words[1]};
}

// Two draws of 16 bits for an element, counted in row-major order modulo 2^32. A word an element
// with two multiplies, where Philox would spend ten rounds of wide ones on four: C. Wellons's
// lowbias32, a half of the key before it and one inside, so that two keys give no shifted copies of
// one sequence.
inline std::uint32_t rounding_word(RoundingKey key, std::uint32_t element) {
  std::uint32_t x = element + key.first;
  x = ((x ^ x >> 16) * 0x7FEB352Du) ^ key.second;
  x = (x ^ x >> 15) * 0x846CA68Bu;
  return x ^ x >> 16;
}

// Of finite values; what bf16 holds stays.
inline BFloat16 to_bfloat16_stochastic(float value, std::uint16_t draw) {
  return {static_cast<std::uint16_t>((std::bit_cast<std::uint32_t>(value) + draw) >> 16)};
}

}  // namespace anabatic
