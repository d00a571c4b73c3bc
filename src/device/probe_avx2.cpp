// SPDX-License-Identifier: Apache-2.0
#include <immintrin.h>

#include "device/probe.h"

namespace anabatic::device {

// Twelve independent chains cover the latency (4) times the throughput (2) of a fused multiply-add,
// within 16 registers.
double fp32_loop_avx2(long rounds) {
  constexpr int kChains = 12;
  __m256 sums[kChains];
  for (__m256& sum : sums) sum = _mm256_setzero_ps();
  __m256 a = _mm256_set1_ps(0.999f), b = _mm256_set1_ps(1e-3f);
  for (long round = 0; round < rounds; ++round) {
    asm volatile("" : "+x"(a), "+x"(b));  // no hoisting out of the loop
#pragma GCC unroll 12
    for (int chain = 0; chain < kChains; ++chain) sums[chain] = _mm256_fmadd_ps(a, b, sums[chain]);
  }
  for (__m256& sum : sums) asm volatile("" : : "x"(sum));
  return 2.0 * 8 * kChains * static_cast<double>(rounds);
}

}  // namespace anabatic::device
