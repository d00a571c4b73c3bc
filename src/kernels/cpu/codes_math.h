// SPDX-License-Identifier: Apache-2.0
// Quantises blocks of a row to int8 with a scale, and back: one formula for the ops and for stages
// after a product. ARCHITECTURE.md's row of `quantize` defines the quantised value.
#pragma once
#include <bit>

#include "kernels/cpu/vector_pairs.h"
#include "tensor/largest_int8.h"

namespace anabatic::kernels::cpu::ANABATIC_ISA {

using Bytes = std::uint8_t __attribute__((vector_size(kLanes)));
using Codes = std::int8_t __attribute__((vector_size(kLanes)));
using PairHalves = std::uint16_t __attribute__((vector_size(4 * kLanes)));

inline constexpr float kSmallest =
    0x1p-100f;  // a block whose largest element is below is all zeroes
inline constexpr std::int32_t kInfinity = 0x7F800000;
// Adding 1.5 · 2^23 rounds to a whole number, to even, which the lowest bits then hold.
inline constexpr float kRounder = 12582912.0f;

// A block's scale is NaN where an element is not finite: every element of it comes back as NaN.
struct BlockScale {
  BFloat16 scale;
  float inverse;
  bool is_finite;
};

// `largest`: bits without the sign, whose order as integers puts NaN above infinity above the rest.
// `levels`: the code of the largest value.
ANABATIC_INLINE BlockScale scale_of(std::int32_t largest, float levels = kLargestInt8) {
  if (largest >= kInfinity) return {to_bfloat16(__builtin_nanf("")), 0.0f, false};
  const auto value = std::bit_cast<float>(largest);
  if (value < kSmallest) return {to_bfloat16(0.0f), 0.0f, true};
  const BFloat16 scale = to_bfloat16_up(value / levels);
  return {scale, 1.0f / to_float(scale), true};
}

ANABATIC_INLINE Ints magnitude(Floats x) { return reinterpret_cast<Ints>(x) & 0x7FFFFFFF; }
ANABATIC_INLINE Ints larger(Ints a, Ints b) { return a > b ? a : b; }
template <int kHalf = kLanes / 2>
ANABATIC_INLINE std::int32_t largest_lane(Ints x) {
  x = larger(x, reinterpret_cast<Ints>(exchange_lanes<kHalf>(reinterpret_cast<Floats>(x))));
  if constexpr (kHalf > 1) return largest_lane<kHalf / 2>(x);
  return x[0];
}

// The bits of the largest magnitude of a block.
ANABATIC_INLINE std::int32_t largest_of(const float* x, std::int64_t count) {
  const std::int64_t whole = count / kPair * kPair;
  Ints largest{};
  for (std::int64_t i = 0; i < whole; i += kPair) {
    const Pair pair = load_pair(x + i);
    largest = larger(largest, larger(magnitude(pair.first), magnitude(pair.second)));
  }
  for_lanes(whole, count,
            [&](std::int64_t i, int n) { largest = larger(largest, magnitude(load(x + i, n))); });
  return largest_lane(largest);
}
// The largest of 16-bit elements: one instruction finds the smallest of eight.
ANABATIC_INLINE std::int32_t largest_half(PairHalves x) {
#if ANABATIC_ISA_LANES > 4
#if ANABATIC_ISA_LANES == 16
  const auto all = reinterpret_cast<__m512i>(x);
  const __m256i quarters =
      _mm256_max_epu16(_mm512_castsi512_si256(all), _mm512_extracti64x4_epi64(all, 1));
#else
  const auto quarters = reinterpret_cast<__m256i>(x);
#endif
  const __m128i eight =
      _mm_max_epu16(_mm256_castsi256_si128(quarters), _mm256_extracti128_si256(quarters, 1));
  const __m128i smallest = _mm_minpos_epu16(_mm_xor_si128(eight, _mm_set1_epi16(-1)));
  return ~_mm_cvtsi128_si32(smallest) & 0xFFFF;
#else
  std::int32_t largest = 0;
  for (int i = 0; i < kPair; ++i) largest = largest > x[i] ? largest : x[i];
  return largest;
#endif
}

// Those of bf16 keep their order in 16 bits.
ANABATIC_INLINE std::int32_t largest_of(const BFloat16* x, std::int64_t count) {
  const std::int64_t whole = count / kPair * kPair;
  PairHalves halves{};
  for (std::int64_t i = 0; i < whole; i += kPair) {
    PairHalves next;
    std::memcpy(&next, x + i, sizeof next);
    next &= 0x7FFF;
    halves = halves > next ? halves : next;
  }
  std::int32_t largest = largest_half(halves) << 16;
  if (whole < count) {
    Ints rest{};
    for_lanes(whole, count,
              [&](std::int64_t i, int n) { rest = larger(rest, magnitude(load(x + i, n))); });
    const std::int32_t of_rest = largest_lane(rest);
    largest = largest > of_rest ? largest : of_rest;
  }
  return largest;
}

// The int8 values as the lowest bytes of words; the bytes above them are not part of the result.
ANABATIC_INLINE Words codes_of(Floats x, float inverse) {
  return reinterpret_cast<Words>(x * inverse + kRounder);
}

ANABATIC_INLINE void store_codes(std::int8_t* p, const float*, const Pair& x, float inverse) {
  const Words first = codes_of(x.first, inverse) & 0xFFu,
              second = codes_of(x.second, inverse) & 0xFFu;
#if ANABATIC_ISA_LANES == 8  // g++ 12 narrows byte by byte
  const auto halves = [](Words words) {
    const auto all = reinterpret_cast<__m256i>(words);
    return _mm_packus_epi32(_mm256_castsi256_si128(all), _mm256_extracti128_si256(all, 1));
  };
  const __m128i bytes = _mm_packus_epi16(halves(first), halves(second));
  std::memcpy(p, &bytes, sizeof bytes);
#else
  const Bytes low = __builtin_convertvector(first, Bytes),
              high = __builtin_convertvector(second, Bytes);
  std::memcpy(p, &low, sizeof low);
  std::memcpy(p + kLanes, &high, sizeof high);
#endif
}
// Even and odd elements next to each other again, in the lower 16 bits of words.
ANABATIC_INLINE Words adjacent_codes(const Pair& x, float inverse) {
  return (codes_of(x.first, inverse) & 0xFFu) | (codes_of(x.second, inverse) << 8);
}
ANABATIC_INLINE void store_codes(std::int8_t* p, const BFloat16*, const Pair& x, float inverse) {
  const Halves halves = __builtin_convertvector(adjacent_codes(x, inverse), Halves);
  std::memcpy(p, &halves, sizeof halves);
}

// The int8 values of two pairs from x on.
template <class T>
ANABATIC_INLINE void store_two_pairs(std::int8_t* p, const T* x, float inverse) {
#if ANABATIC_ISA_LANES == 16  // one shuffle gathers both pairs
  if constexpr (sizeof(T) == sizeof(BFloat16)) {
    PairHalves lower;
    for (int i = 0; i < kPair; ++i) lower[i] = static_cast<std::uint16_t>(2 * i);
    const PairHalves halves = __builtin_shuffle(
        reinterpret_cast<PairHalves>(adjacent_codes(load_pair(x), inverse)),
        reinterpret_cast<PairHalves>(adjacent_codes(load_pair(x + kPair), inverse)), lower);
    std::memcpy(p, &halves, sizeof halves);
    return;
  }
#endif
  store_codes(p, x, load_pair(x), inverse);
  store_codes(p + kPair, x, load_pair(x + kPair), inverse);
}

template <class T>
ANABATIC_INLINE void store_block_codes(const T* x, std::int64_t count, std::int8_t* codes,
                                       float inverse) {
  const std::int64_t whole = count / kPair * kPair, twice = count / (2 * kPair) * (2 * kPair);
  for (std::int64_t i = 0; i < twice; i += 2 * kPair) store_two_pairs(codes + i, x + i, inverse);
  if (twice < whole) store_codes(codes + twice, x, load_pair(x + twice), inverse);
  for_lanes(whole, count, [&](std::int64_t i, int n) {
    const Words words = codes_of(load(x + i, n), inverse);
    for (int k = 0; k < n; ++k) codes[i + k] = static_cast<std::int8_t>(words[k]);
  });
}

template <class T>
ANABATIC_INLINE BFloat16 quantize_block(const T* x, std::int64_t count, std::int8_t* codes) {
  const BlockScale block = scale_of(largest_of(x, count));
  if (block.is_finite)
    store_block_codes(x, count, codes, block.inverse);
  else
    std::memset(codes, 0, static_cast<std::size_t>(count));
  return block.scale;
}

ANABATIC_INLINE Floats load_codes(const std::int8_t* p, int count) {
  Codes codes{};
  if (count == kLanes)
    std::memcpy(&codes, p, sizeof codes);
  else
    for (int i = 0; i < count; ++i) codes[i] = p[i];
#if ANABATIC_ISA_LANES == 16  // g++ 12 widens element by element
  return _mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(reinterpret_cast<__m128i>(codes)));
#else
  return __builtin_convertvector(__builtin_convertvector(codes, Ints), Floats);
#endif
}
// In the order that load_pair gives elements of the type.
ANABATIC_INLINE Pair load_code_pair(const std::int8_t* p, const float*) {
#if ANABATIC_ISA_LANES == 8  // g++ 12 would widen in two parts
  const auto widened = [](const std::int8_t* q) {
    return _mm256_cvtepi32_ps(
        _mm256_cvtepi8_epi32(_mm_loadl_epi64(reinterpret_cast<const __m128i*>(q))));
  };
  return {widened(p), widened(p + kLanes)};
#else
  return {load_codes(p, kLanes), load_codes(p + kLanes, kLanes)};
#endif
}
ANABATIC_INLINE Pair load_code_pair(const std::int8_t* p, const BFloat16*) {
  Halves halves;
  std::memcpy(&halves, p, sizeof halves);
#if ANABATIC_ISA_LANES == 8
  const auto both =
      reinterpret_cast<Words>(_mm256_cvtepu16_epi32(reinterpret_cast<__m128i>(halves)));
#else
  const Words both = __builtin_convertvector(halves, Words);
#endif
  // Shifts of signed lanes keep the sign.
  return {__builtin_convertvector(reinterpret_cast<Ints>(both << 24) >> 24, Floats),
          __builtin_convertvector(reinterpret_cast<Ints>(both << 16) >> 24, Floats)};
}

// kPair elements.
template <bool kStreams, class T>
ANABATIC_INLINE void put_values(T* x, const std::int8_t* codes, float scale) {
  const Pair pair = load_code_pair(codes, x);
  store_pair<kStreams>(x, {pair.first * scale, pair.second * scale});
}
#if defined(__AVX512BF16__)
// One instruction rounds both vectors, as store_pair does: no product of a code and a scale is
// subnormal.
template <bool kStreams>
ANABATIC_INLINE void put_values(BFloat16* x, const std::int8_t* codes, float scale) {
  const Floats first = load_codes(codes, kLanes) * scale,
               second = load_codes(codes + kLanes, kLanes) * scale;
  put_words<kStreams>(x, reinterpret_cast<Words>(_mm512_cvtne2ps_pbh(second, first)));
}
#endif

template <bool kStreams, class T>
ANABATIC_INLINE void dequantize_block(const std::int8_t* codes, std::int64_t count, float scale,
                                      T* x) {
  const std::int64_t whole = count / kPair * kPair;
  for (std::int64_t i = 0; i < whole; i += kPair) put_values<kStreams>(x + i, codes + i, scale);
  for_lanes(whole, count,
            [&](std::int64_t i, int n) { store(x + i, load_codes(codes + i, n) * scale, n); });
}

}  // namespace anabatic::kernels::cpu::ANABATIC_ISA
