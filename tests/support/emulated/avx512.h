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
#include <simde/x86/avx512/extract.h>
#include <simde/x86/avx512/fmadd.h>
#include <simde/x86/avx512/loadu.h>
#include <simde/x86/avx512/max.h>
#include <simde/x86/avx512/min.h>
#include <simde/x86/avx512/mov.h>
#include <simde/x86/avx512/mul.h>
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

#include <cmath>
#include <cstdint>
#include <cstring>

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

// To even; denormals become zero, NaN stays NaN.
inline std::uint16_t to_bf16(float x) {
  std::uint32_t bits;
  std::memcpy(&bits, &x, sizeof bits);
  if (x != x) return static_cast<std::uint16_t>((bits >> 16) | 0x40u);
  if ((bits & 0x7F800000u) == 0) bits &= 0x80000000u;
  return static_cast<std::uint16_t>((bits + 0x7FFFu + ((bits >> 16) & 1u)) >> 16);
}

// The second operand stands first.
inline __m512bh two_to_bf16(__m512 high, __m512 low) {
  std::uint16_t both[32];
  for (int i = 0; i < 16; ++i) {
    both[i] = to_bf16(low[i]);
    both[16 + i] = to_bf16(high[i]);
  }
  __m512bh result;
  std::memcpy(&result, both, sizeof both);
  return result;
}

inline __m256bh one_to_bf16(__m512 x) {
  std::uint16_t elements[16];
  for (int i = 0; i < 16; ++i) elements[i] = to_bf16(x[i]);
  __m256bh result;
  std::memcpy(&result, elements, sizeof elements);
  return result;
}

// What the mask leaves out is not read.
inline __m512i load_masked(std::uint32_t mask, const void* p) {
  std::uint16_t elements[32] = {};
  for (int i = 0; i < 32; ++i)
    if (mask >> i & 1u)
      std::memcpy(elements + i, static_cast<const char*>(p) + 2 * i, sizeof elements[i]);
  return simde_mm512_loadu_si512(elements);
}

// The fraction above the next lower whole number.
inline __m512 above_floor(__m512 x) {
  for (int i = 0; i < 16; ++i) x[i] = std::isinf(x[i]) ? 0.0f : x[i] - std::floor(x[i]);
  return x;
}

inline __m512 gather(__m512i at, const float* table) {
  std::int32_t places[16];
  std::memcpy(places, &at, sizeof places);
  __m512 x;
  for (int i = 0; i < 16; ++i) x[i] = table[places[i]];
  return x;
}

inline __m512i words_of_bytes(__m128i x) {
  std::int8_t bytes[16];
  std::memcpy(bytes, &x, sizeof bytes);
  std::int32_t words[16];
  for (int i = 0; i < 16; ++i) words[i] = bytes[i];
  return simde_mm512_loadu_si512(words);
}

inline __m512 floats_of_words(__m512i x) {
  std::int32_t words[16];
  std::memcpy(words, &x, sizeof words);
  __m512 floats;
  for (int i = 0; i < 16; ++i) floats[i] = static_cast<float>(words[i]);
  return floats;
}

inline float largest_lane(__m512 x) {
  float largest = x[0];
  for (int i = 1; i < 16; ++i) largest = x[i] > largest ? x[i] : largest;
  return largest;
}

}  // namespace
}  // namespace anabatic::emulated

#undef _mm512_cvtepi32_epi16
#undef _mm512_cvtepi32_ps
#undef _mm512_cvtepi8_epi32
#undef _mm512_cvtne2ps_pbh
#undef _mm512_cvtneps_pbh
#undef _mm512_dpbf16_ps
#undef _mm512_i32gather_ps
#undef _mm512_load_ps
#undef _mm512_load_si512
#undef _mm512_maskz_loadu_epi16
#undef _mm512_maskz_scalef_ps
#undef _mm512_reduce_max_ps
#undef _mm512_reduce_ps
#undef _mm512_scalef_ps
#undef _mm512_store_si512
#undef _mm512_stream_si512
#define _mm512_cvtepi32_epi16(x) anabatic::emulated::low_halves(x)
#define _mm512_cvtepi32_ps(x) anabatic::emulated::floats_of_words(x)
#define _mm512_cvtepi8_epi32(x) anabatic::emulated::words_of_bytes(x)
#define _mm512_cvtne2ps_pbh(high, low) anabatic::emulated::two_to_bf16(high, low)
#define _mm512_cvtneps_pbh(x) anabatic::emulated::one_to_bf16(x)
#define _mm512_dpbf16_ps(sum, a, b) anabatic::emulated::dot_pairs(sum, a, b)
#define _mm512_i32gather_ps(at, table, scale) anabatic::emulated::gather(at, table)
#define _mm512_load_ps(p) simde_mm512_loadu_ps(anabatic::emulated::aligned(p))
#define _mm512_load_si512(p) simde_mm512_loadu_si512(anabatic::emulated::aligned(p))
#define _mm512_maskz_loadu_epi16(mask, p) anabatic::emulated::load_masked(mask, p)
#define _mm512_maskz_scalef_ps(mask, x, n) \
  simde_mm512_maskz_mov_ps(mask, anabatic::emulated::times_power_of_two(x, n))
#define _mm512_reduce_max_ps(x) anabatic::emulated::largest_lane(x)
#define _mm512_reduce_ps(x, floor) anabatic::emulated::above_floor(x)
#define _mm512_scalef_ps(x, n) anabatic::emulated::times_power_of_two(x, n)
#define _mm512_store_si512(p, x) simde_mm512_storeu_si512(anabatic::emulated::aligned(p), x)
#define _mm512_stream_si512(p, x) simde_mm512_storeu_si512(anabatic::emulated::aligned(p), x)
