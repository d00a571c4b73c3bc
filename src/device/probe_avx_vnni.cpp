// SPDX-License-Identifier: Apache-2.0
#include <immintrin.h>

#include "device/probe.h"

namespace anabatic::device {

// VPDPBUSD on 256 bits, in as many chains as fp32_loop_avx2 has. g++ 12 copies the sums of its
// intrinsic through the stack. {vex}: the form without AVX-512.
double int8_loop_avx_vnni(long rounds) {
  constexpr int kChains = 12;
  __m256i sums[kChains];
#pragma GCC unroll 12
  for (int chain = 0; chain < kChains; ++chain) sums[chain] = _mm256_setzero_si256();
  __m256i a = _mm256_set1_epi32(0x01010101), b = a;
  for (long round = 0; round < rounds; ++round) {
    asm volatile("" : "+x"(a), "+x"(b));
#pragma GCC unroll 12
    for (int chain = 0; chain < kChains; ++chain)
      asm("%{vex%} vpdpbusd %2, %1, %0" : "+x"(sums[chain]) : "x"(a), "x"(b));
  }
#pragma GCC unroll 12
  for (int chain = 0; chain < kChains; ++chain) asm volatile("" : : "x"(sums[chain]));
  return 2.0 * 32 * kChains * static_cast<double>(rounds);
}

}  // namespace anabatic::device
