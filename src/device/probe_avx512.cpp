// SPDX-License-Identifier: Apache-2.0
#include <immintrin.h>

#include "device/probe.h"

namespace anabatic::device {
namespace {

constexpr int kChains = 24;

}  // namespace

double fp32_loop_avx512(long rounds) {
  __m512 sums[kChains];
  for (__m512& sum : sums) sum = _mm512_setzero_ps();
  __m512 a = _mm512_set1_ps(0.999f), b = _mm512_set1_ps(1e-3f);
  for (long round = 0; round < rounds; ++round) {
    asm volatile("" : "+v"(a), "+v"(b));  // no hoisting out of the loop
#pragma GCC unroll 24
    for (int chain = 0; chain < kChains; ++chain) sums[chain] = _mm512_fmadd_ps(a, b, sums[chain]);
  }
  for (__m512& sum : sums) asm volatile("" : : "v"(sum));
  return 2.0 * 16 * kChains * static_cast<double>(rounds);
}

double bf16_loop_avx512(long rounds) {
  __m512 sums[kChains];
  for (__m512& sum : sums) sum = _mm512_setzero_ps();
  __m512i a = _mm512_set1_epi32(0x3C003C00), b = a;
  for (long round = 0; round < rounds; ++round) {
    asm volatile("" : "+v"(a), "+v"(b));
#pragma GCC unroll 24
    for (int chain = 0; chain < kChains; ++chain)
      sums[chain] = _mm512_dpbf16_ps(sums[chain], reinterpret_cast<__m512bh>(a),
                                     reinterpret_cast<__m512bh>(b));
  }
  for (__m512& sum : sums) asm volatile("" : : "v"(sum));
  return 2.0 * 32 * kChains * static_cast<double>(rounds);
}

// VPDPBUSD. g++ 12 copies the sums of its intrinsic through the stack.
double int8_loop_avx512(long rounds) {
  __m512i sums[kChains];
#pragma GCC unroll 24
  for (int chain = 0; chain < kChains; ++chain) sums[chain] = _mm512_setzero_si512();
  __m512i a = _mm512_set1_epi32(0x01010101), b = a;
  for (long round = 0; round < rounds; ++round) {
    asm volatile("" : "+v"(a), "+v"(b));
#pragma GCC unroll 24
    for (int chain = 0; chain < kChains; ++chain)
      asm("vpdpbusd %2, %1, %0" : "+v"(sums[chain]) : "v"(a), "v"(b));
  }
#pragma GCC unroll 24
  for (int chain = 0; chain < kChains; ++chain) asm volatile("" : : "v"(sums[chain]));
  return 2.0 * 64 * kChains * static_cast<double>(rounds);
}

}  // namespace anabatic::device
