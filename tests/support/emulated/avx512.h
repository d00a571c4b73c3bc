// SPDX-License-Identifier: Apache-2.0
// Stands before every other line of a kernel source: the AVX-512 that the kernels use, by SIMDe on
// any x86 with AVX2. GCC lowers the 64-byte vectors of the vector sources itself. Own versions
// where SIMDe is more lenient than the instruction, or gives other bits.
#pragma once
#define SIMDE_ENABLE_NATIVE_ALIASES
#include <immintrin.h>
#include <simde/x86/avx512/add.h>
#include <simde/x86/avx512/and.h>
#include <simde/x86/avx512/cast.h>
#include <simde/x86/avx512/cmp.h>
#include <simde/x86/avx512/dpbf16.h>
#include <simde/x86/avx512/fmadd.h>
#include <simde/x86/avx512/loadu.h>
#include <simde/x86/avx512/max.h>
#include <simde/x86/avx512/min.h>
#include <simde/x86/avx512/mov.h>
#include <simde/x86/avx512/or.h>
#include <simde/x86/avx512/set1.h>
#include <simde/x86/avx512/setzero.h>
#include <simde/x86/avx512/shuffle.h>
#include <simde/x86/avx512/slli.h>
#include <simde/x86/avx512/sqrt.h>
#include <simde/x86/avx512/srli.h>
#include <simde/x86/avx512/storeu.h>
#include <simde/x86/avx512/unpackhi.h>
#include <simde/x86/avx512/unpacklo.h>

#include <cstdint>

namespace anabatic::emulated {
namespace {

// Faults as the instruction does.
template <class T>
inline T* aligned(T* p) {
  if (reinterpret_cast<std::uintptr_t>(p) % 64 != 0) __builtin_trap();
  return p;
}

// The products of the odd elements first; each is added with one rounding. The instruction takes
// denormals as zero and gives none: so do the threads of a ThreadTeam.
inline __m512 dot_pairs(__m512 sum, __m512bh a, __m512bh b) {
  const auto left = (__m512i)a, right = (__m512i)b;
  const __m512i odd = simde_mm512_set1_epi32(static_cast<int>(0xFFFF0000u));
  sum = simde_mm512_fmadd_ps((__m512)simde_mm512_and_si512(left, odd),
                             (__m512)simde_mm512_and_si512(right, odd), sum);
  return simde_mm512_fmadd_ps((__m512)simde_mm512_slli_epi32(left, 16),
                              (__m512)simde_mm512_slli_epi32(right, 16), sum);
}

// x · 2^floor(n), rounded once: a double holds every such number.
inline __m512 times_power_of_two(__m512 x, __m512 n) {
  for (int i = 0; i < 16; ++i)
    x[i] = static_cast<float>(double{x[i]} * __builtin_exp2(__builtin_floor(double{n[i]})));
  return x;
}

inline __m256i low_halves(__m512i x) {
  std::uint32_t words[16];
  std::uint16_t halves[16];
  __builtin_memcpy(words, &x, sizeof words);
  for (int i = 0; i < 16; ++i) halves[i] = static_cast<std::uint16_t>(words[i]);
  return _mm256_loadu_si256(reinterpret_cast<const __m256i*>(halves));
}

}  // namespace
}  // namespace anabatic::emulated

#undef _mm512_cvtepi32_epi16
#undef _mm512_dpbf16_ps
#undef _mm512_load_ps
#undef _mm512_load_si512
#undef _mm512_scalef_ps
#undef _mm512_store_si512
#undef _mm512_stream_si512
#define _mm512_cvtepi32_epi16(x) anabatic::emulated::low_halves(x)
#define _mm512_dpbf16_ps(sum, a, b) anabatic::emulated::dot_pairs(sum, a, b)
#define _mm512_load_ps(p) simde_mm512_loadu_ps(anabatic::emulated::aligned(p))
#define _mm512_load_si512(p) simde_mm512_loadu_si512(anabatic::emulated::aligned(p))
#define _mm512_scalef_ps(x, n) anabatic::emulated::times_power_of_two(x, n)
#define _mm512_store_si512(p, x) simde_mm512_storeu_si512(anabatic::emulated::aligned(p), x)
#define _mm512_stream_si512(p, x) simde_mm512_storeu_si512(anabatic::emulated::aligned(p), x)
