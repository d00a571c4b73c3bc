// SPDX-License-Identifier: Apache-2.0
// Float lanes for sources that are compiled once per instruction set: GCC vectors as wide as the
// flags allow. Everything is in a namespace named after the instruction set, so that the linker
// never takes one variant's inline function for another's.
#pragma once
#include <cstdint>
#include <cstring>
#if defined(__AVX2__)
#include <immintrin.h>
#endif

#include "kernels/cpu/sums.h"
#include "tensor/half.h"

#if defined(__AVX512F__) && defined(__AVX512BW__) && defined(__AVX512DQ__) && defined(__AVX512VL__)
#if defined(__AVX512BF16__)
#define ANABATIC_ISA avx512_bf16
#else
#define ANABATIC_ISA avx512
#endif
#define ANABATIC_ISA_LANES 16
#elif defined(__AVX2__) && defined(__FMA__)
#define ANABATIC_ISA avx2
#define ANABATIC_ISA_LANES 8
#else
#define ANABATIC_ISA portable
#define ANABATIC_ISA_LANES 4
#endif

#define ANABATIC_INLINE inline __attribute__((always_inline))

namespace anabatic::kernels::cpu::ANABATIC_ISA {

inline constexpr int kLanes = ANABATIC_ISA_LANES;

using Floats = float __attribute__((vector_size(4 * kLanes)));
using Ints = std::int32_t __attribute__((vector_size(4 * kLanes)));
using Words = std::uint32_t __attribute__((vector_size(4 * kLanes)));
using Halves = std::uint16_t __attribute__((vector_size(2 * kLanes)));
// Half as many lanes as Floats.
using Doubles = double __attribute__((vector_size(4 * kLanes)));
using FewFloats = float __attribute__((vector_size(2 * kLanes)));

ANABATIC_INLINE Floats broadcast(float x) { return x - Floats{}; }  // x - 0 is x

// `count` elements from p; lanes beyond are zero. A constant count of kLanes is one plain load.
ANABATIC_INLINE Floats load(const float* p, int count = kLanes) {
  Floats x{};
  if (count == kLanes)
    std::memcpy(&x, p, sizeof x);
  else
    for (int i = 0; i < count; ++i) x[i] = p[i];
  return x;
}
ANABATIC_INLINE Floats load(const BFloat16* p, int count = kLanes) {
  Halves x{};
  if (count == kLanes)
    std::memcpy(&x, p, sizeof x);
  else
    for (int i = 0; i < count; ++i) x[i] = p[i].bits;
#if ANABATIC_ISA_LANES == 8  // g++ 12 would widen in two parts
  return reinterpret_cast<Floats>(
      _mm256_slli_epi32(_mm256_cvtepu16_epi32(reinterpret_cast<__m128i>(x)), 16));
#else
  return reinterpret_cast<Floats>(__builtin_convertvector(x, Words) << 16);
#endif
}

// f16 to and from f32: F16C, whose instructions keep subnormals in either direction whatever FTZ
// and DAZ say. `store` rounds to even.
ANABATIC_INLINE Floats widen_halves(Halves x) {
#if ANABATIC_ISA_LANES == 16
  return reinterpret_cast<Floats>(_mm512_cvtph_ps(reinterpret_cast<__m256i>(x)));
#elif ANABATIC_ISA_LANES == 8
  return reinterpret_cast<Floats>(_mm256_cvtph_ps(reinterpret_cast<__m128i>(x)));
#else
  Floats y;
  for (int i = 0; i < kLanes; ++i) y[i] = half_to_float(x[i]);
  return y;
#endif
}
ANABATIC_INLINE Halves narrow_to_halves(Floats x) {
#if ANABATIC_ISA_LANES == 16
  return reinterpret_cast<Halves>(
      _mm512_cvtps_ph(reinterpret_cast<__m512>(x), _MM_FROUND_TO_NEAREST_INT));
#elif ANABATIC_ISA_LANES == 8
  return reinterpret_cast<Halves>(
      _mm256_cvtps_ph(reinterpret_cast<__m256>(x), _MM_FROUND_TO_NEAREST_INT));
#else
  Halves y;
  for (int i = 0; i < kLanes; ++i) y[i] = float_to_half(x[i]);
  return y;
#endif
}
ANABATIC_INLINE Floats load(const Float16* p, int count = kLanes) {
  Halves x{};
  if (count == kLanes)
    std::memcpy(&x, p, sizeof x);
  else
    for (int i = 0; i < count; ++i) x[i] = p[i].bits;
  return widen_halves(x);
}

ANABATIC_INLINE void store(float* p, Floats x, int count = kLanes) {
  if (count == kLanes)
    std::memcpy(p, &x, sizeof x);
  else
    for (int i = 0; i < count; ++i) p[i] = x[i];
}
ANABATIC_INLINE void store_bits(BFloat16* p, Words bits, int count) {
  const Halves x = __builtin_convertvector(bits, Halves);
  if (count == kLanes)
    std::memcpy(p, &x, sizeof x);
  else
    for (int i = 0; i < count; ++i) p[i].bits = x[i];
}

// The upper 16 bits as bf16 bits; NaN stays NaN (dtype.h has the scalar versions).
ANABATIC_INLINE Words bf16_bits(Floats x, Words rounding) {
  const Words bits = reinterpret_cast<Words>(x);
  return x != x ? (bits >> 16) | 0x40u : (bits + rounding) >> 16;
}
ANABATIC_INLINE Words bf16_even(Floats x) {
  return bf16_bits(x, ((reinterpret_cast<Words>(x) >> 16) & 1u) + 0x7FFFu);
}
ANABATIC_INLINE void store(BFloat16* p, Floats x, int count = kLanes) {
  store_bits(p, bf16_even(x), count);
}
ANABATIC_INLINE void store(Float16* p, Floats x, int count = kLanes) {
  const Halves y = narrow_to_halves(x);
  if (count == kLanes)
    std::memcpy(p, &y, sizeof y);
  else
    for (int i = 0; i < count; ++i) p[i].bits = y[i];
}
ANABATIC_INLINE void store_half_away(BFloat16* p, Floats x, int count) {
  store_bits(p, bf16_bits(x, Words{} + 0x8000u), count);
}

// x rounded to T.
template <class T>
ANABATIC_INLINE Floats round_to(Floats x) {
  if constexpr (__is_same(T, Float16))
    return widen_halves(narrow_to_halves(x));
  else if constexpr (__is_same(T, BFloat16))
    return reinterpret_cast<Floats>(bf16_even(x) << 16);
  else
    return x;
}

// a · b + c, rounded once where the instruction set has it. Element by element the same in vectors
// and tails, for tails are vectors too.
ANABATIC_INLINE Floats madd(Floats a, Floats b, Floats c) {
#if ANABATIC_ISA_LANES == 16
  return _mm512_fmadd_ps(a, b, c);
#elif ANABATIC_ISA_LANES == 8
  return _mm256_fmadd_ps(a, b, c);
#else
  return a * b + c;
#endif
}

// The larger one; b when a is NaN.
ANABATIC_INLINE Floats max(Floats a, Floats b) { return a > b ? a : b; }

// x held within [low, high]; NaN stays NaN.
ANABATIC_INLINE Floats clamp(Floats x, float low, float high) {
#if ANABATIC_ISA_LANES == 16
  return _mm512_min_ps(broadcast(high), _mm512_max_ps(broadcast(low), x));
#elif ANABATIC_ISA_LANES == 8
  return _mm256_min_ps(broadcast(high), _mm256_max_ps(broadcast(low), x));
#else
  x = x < low ? broadcast(low) : x;
  return x > high ? broadcast(high) : x;
#endif
}

ANABATIC_INLINE Floats square_root(Floats x) {
#if ANABATIC_ISA_LANES == 16
  return _mm512_sqrt_ps(x);
#elif ANABATIC_ISA_LANES == 8
  return _mm256_sqrt_ps(x);
#else
  for (int i = 0; i < kLanes; ++i) x[i] = __builtin_sqrtf(x[i]);
  return x;
#endif
}

// x[j ^ kHalf] in lane j.
template <int kHalf>
ANABATIC_INLINE Floats exchange_lanes(Floats x) {
  Ints other;
  for (int j = 0; j < kLanes; ++j) other[j] = j ^ kHalf;
  return __builtin_shuffle(x, other);
}
template <int kHalf>
ANABATIC_INLINE Doubles exchange_lanes(Doubles x) {
  using Longs = std::int64_t __attribute__((vector_size(sizeof x)));
  Longs other;
  for (int j = 0; j < kLanes / 2; ++j) other[j] = j ^ kHalf;
  return __builtin_shuffle(x, other);
}

// Pairwise, hence one fixed order.
template <int kHalf = kLanes / 2>
ANABATIC_INLINE float sum_lanes(Floats x) {
  x += exchange_lanes<kHalf>(x);
  if constexpr (kHalf > 1) return sum_lanes<kHalf / 2>(x);
  return x[0];
}
template <int kHalf = kLanes / 4>
ANABATIC_INLINE double sum_lanes(Doubles x) {
  x += exchange_lanes<kHalf>(x);
  if constexpr (kHalf > 1) return sum_lanes<kHalf / 2>(x);
  return x[0];
}
template <int kHalf = kLanes / 2>
ANABATIC_INLINE float max_lanes(Floats x) {
  x = max(x, exchange_lanes<kHalf>(x));
  if constexpr (kHalf > 1) return max_lanes<kHalf / 2>(x);
  return x[0];
}

// x · 2^n for an n that holds a whole number within [-153, 128].
ANABATIC_INLINE Floats times_power_of_two(Floats x, Floats n) {
#if ANABATIC_ISA_LANES == 16
  return _mm512_scalef_ps(x, n);
#else
  const Ints whole = __builtin_convertvector(n, Ints), half = whole >> 1;
  return x * reinterpret_cast<Floats>((half + 127) << 23) *
         reinterpret_cast<Floats>((whole - half + 127) << 23);
#endif
}

// e^x: n = round(x / ln 2), then Cephes's polynomial of expf (S. Moshier) on the rest. Relative
// error below 2e-7; 0 far below, infinity far above, NaN for NaN.
ANABATIC_INLINE Floats exp(Floats x) {
  x = x > 89.0f ? broadcast(89.0f) : x;
  x = x < -106.0f ? broadcast(-106.0f) : x;
  // Adding 1.5 · 2^23 leaves no bits of the fraction.
  const Floats n = madd(x, broadcast(1.44269504f), broadcast(12582912.0f)) - 12582912.0f;
  Floats r = madd(n, broadcast(-0.693359375f), x);
  r = madd(n, broadcast(2.12194440e-4f), r);
  Floats p = broadcast(1.9875691500e-4f);
  p = madd(p, r, broadcast(1.3981999507e-3f));
  p = madd(p, r, broadcast(8.3334519073e-3f));
  p = madd(p, r, broadcast(4.1665795894e-2f));
  p = madd(p, r, broadcast(1.6666665459e-1f));
  p = madd(p, r, broadcast(5.0000001201e-1f));
  return times_power_of_two(madd(p, r * r, r) + 1.0f, n);
}

// For normal numbers: Cephes's polynomial of logf (S. Moshier) around 1. Error below 2e-7 of the
// result or of 1, whichever is larger; NaN for NaN.
ANABATIC_INLINE Floats log2(Floats x) {
  const Ints bits = reinterpret_cast<Ints>(x);
  const Ints exponent = (bits - 0x3F3504F3) >> 23;  // of x / sqrt(0.5)
  const Floats r = reinterpret_cast<Floats>(bits - (exponent << 23)) - 1.0f, r2 = r * r;
  Floats p = broadcast(7.0376836292e-2f);
  p = madd(p, r, broadcast(-1.1514610310e-1f));
  p = madd(p, r, broadcast(1.1676998740e-1f));
  p = madd(p, r, broadcast(-1.2420140846e-1f));
  p = madd(p, r, broadcast(1.4249322787e-1f));
  p = madd(p, r, broadcast(-1.6668057665e-1f));
  p = madd(p, r, broadcast(2.0000714765e-1f));
  p = madd(p, r, broadcast(-2.4999993993e-1f));
  p = madd(p, r, broadcast(3.3333331174e-1f));
  const Floats natural = madd(p * r, r2, madd(broadcast(-0.5f), r2, r));
  const Floats result =
      madd(natural, broadcast(1.44269504f), __builtin_convertvector(exponent, Floats));
  return x == x ? result : x;
}

// Calls body(i, count) over [begin, end) in steps of kLanes; count is kLanes but for the last.
template <class Body>
ANABATIC_INLINE void for_lanes(std::int64_t begin, std::int64_t end, Body&& body) {
  std::int64_t i = begin;
  for (; i + kLanes <= end; i += kLanes) body(i, kLanes);
  if (i < end) body(i, static_cast<int>(end - i));
}

// Folds sum = body(i, count, sum) over [0, size), four sums side by side: the order depends on
// `size` alone. Loads give 0 beyond `count`.
template <class Body>
ANABATIC_INLINE Floats sum_over_lanes(std::int64_t size, Body&& body) {
  Floats sums[4] = {};
  std::int64_t i = 0;
  for (; i + 4 * kLanes <= size; i += 4 * kLanes) {
#pragma GCC unroll 4
    for (int k = 0; k < 4; ++k) sums[k] = body(i + k * kLanes, kLanes, sums[k]);
  }
  for_lanes(i, size, [&](std::int64_t j, int n) { sums[0] = body(j, n, sums[0]); });
  return (sums[0] + sums[1]) + (sums[2] + sums[3]);
}

// The same of a row of any size, in blocks that a double adds up.
template <class Body>
ANABATIC_INLINE double sum_of_row(std::int64_t size, Body&& body) {
  double sum = 0;
  for (std::int64_t begin = 0; begin < size; begin += kSumElements) {
    const std::int64_t left = size - begin;
    sum += static_cast<double>(sum_lanes(sum_over_lanes(
        left < kSumElements ? left : kSumElements,
        [&](std::int64_t i, int n, Floats before) { return body(begin + i, n, before); })));
  }
  return sum;
}

// Lane by lane sums in double.
struct WideSums {
  Doubles halves[2] = {};

  ANABATIC_INLINE void add(Floats x) {
    FewFloats parts[2];
    std::memcpy(parts, &x, sizeof x);
    for (int i = 0; i < 2; ++i) halves[i] += __builtin_convertvector(parts[i], Doubles);
  }
  ANABATIC_INLINE Floats rounded() const {
    FewFloats parts[2];
    for (int i = 0; i < 2; ++i) parts[i] = __builtin_convertvector(halves[i], FewFloats);
    Floats x;
    std::memcpy(&x, parts, sizeof x);
    return x;
  }
};

}  // namespace anabatic::kernels::cpu::ANABATIC_ISA
