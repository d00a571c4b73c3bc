// SPDX-License-Identifier: Apache-2.0
// The draws of dropout, by vectors of Philox counters; spec/dropout.h gives their bits to elements.
// With AVX-512, 12 instructions a round make 64 words, the bits of 128 elements.
#pragma once
#include "kernels/cpu/elementwise/draws.h"
#include "kernels/cpu/vector_math.h"

namespace anabatic::kernels::cpu::ANABATIC_ISA {
namespace {

constexpr int kParts = spec::kDropoutCalls / kLanes;  // vectors of counters of one block of columns
constexpr int kRuns = spec::kDropoutColumns / (2 * spec::kDropoutCalls);  // words of a call

// A word of a counter in the lower 32 bits of each lane; the upper ones mean nothing.
using Longs = std::uint64_t __attribute__((vector_size(4 * kLanes)));

ANABATIC_INLINE Longs multiply_low(Longs a, std::uint64_t b) {
#if ANABATIC_ISA_LANES == 16
  return reinterpret_cast<Longs>(
      _mm512_mul_epu32(reinterpret_cast<__m512i>(a), reinterpret_cast<__m512i>(Longs{} + b)));
#elif ANABATIC_ISA_LANES == 8
  return reinterpret_cast<Longs>(
      _mm256_mul_epu32(reinterpret_cast<__m256i>(a), reinterpret_cast<__m256i>(Longs{} + b)));
#else
  return (a & 0xFFFFFFFFu) * b;
#endif
}

struct Counter {
  Longs words[kRuns];
};

ANABATIC_INLINE void philox_rounds(const Draws& draws, Counter& counter) {
  auto& [c0, c1, c2, c3] = counter.words;
#pragma GCC unroll 10
  for (int round = 0; round < Draws::kRounds; ++round) {
    const Longs product0 = multiply_low(c0, 0xD2511F53u), product1 = multiply_low(c2, 0xCD9E8D57u);
    c0 = (product1 >> 32) ^ c1 ^ (Longs{} + draws.keys[round][0]);
    c1 = product1;
    c2 = (product0 >> 32) ^ c3 ^ (Longs{} + draws.keys[round][1]);
    c3 = product0;
  }
}

// The words of kLanes counters from `group` on, word by word.
ANABATIC_INLINE void draw(const Draws& draws, std::uint32_t row, std::uint32_t group,
                          Words (&words)[kRuns]) {
  Longs even;
  for (int i = 0; i < kLanes / 2; ++i) even[i] = 2 * static_cast<std::uint64_t>(i);
  even += group;
  Counter first{{Longs{} + row, even, Longs{} + draws.site_low, Longs{} + draws.site_high}};
  Counter second = first;
  second.words[1] += 1;
  philox_rounds(draws, first);
  philox_rounds(draws, second);
  for (int i = 0; i < kRuns; ++i)
    words[i] = reinterpret_cast<Words>((first.words[i] & 0xFFFFFFFFu) | (second.words[i] << 32));
}

// All words of columns [128 · block, 128 · block + 128).
ANABATIC_INLINE void draw_block(const Draws& draws, std::uint32_t row, std::int64_t block,
                                Words (&words)[kParts][kRuns]) {
  const auto group = static_cast<std::uint32_t>(block * spec::kDropoutCalls);
#pragma GCC unroll 4
  for (int part = 0; part < kParts; ++part)
    draw(draws, row, group + static_cast<std::uint32_t>(part * kLanes), words[part]);
}

}  // namespace
}  // namespace anabatic::kernels::cpu::ANABATIC_ISA
