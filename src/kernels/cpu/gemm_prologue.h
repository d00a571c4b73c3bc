// SPDX-License-Identifier: Apache-2.0
// Lines of an operand as the norm of them (LineNorm), and with dropout (LineDropout): with the bits
// that the kernels of rms_norm, layer_norm and dropout store. Compiled once an instruction set: see
// gemm_pack.h for what that forbids.
#pragma once
#if defined(__AVX512BF16__)
#include <immintrin.h>
#endif

#include "kernels/cpu/gemm_convert.h"

namespace anabatic::kernels::cpu {
namespace {

// a · b + c as the norms' kernels of this instruction set have it (madd of vector_math.h).
inline float norm_madd(float a, float b, float c) {
#if defined(__FMA__)
  return __builtin_fmaf(a, b, c);
#else
  return a * b + c;
#endif
}

// A value as an element of T holds it.
template <class T>
inline float as_element(float value) {
  if constexpr (__is_same(T, float))
    return value;
  else
    return widen(narrow(value));
}

inline void put_element(float* to, float value) { *to = value; }
// Whoever reads it may read pairs.
inline void put_element(std::uint16_t* to, float value) {
  const std::uint16_t bits = narrow(value);
  __builtin_memcpy(to, &bits, sizeof bits);
}

#if defined(__AVX512BF16__)
// Two times sixteen elements of bf16 in f32, and back. Results of arithmetic here are no denormals.
struct NormVectors {
  __m512 low, high;

  static __m512 widened(__m256i halves) {
    return _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(halves), 16));
  }
  static NormVectors load(__m512i both) {
    return {widened(_mm512_castsi512_si256(both)), widened(_mm512_extracti64x4_epi64(both, 1))};
  }
  __m512i narrowed() const { return (__m512i)_mm512_cvtne2ps_pbh(high, low); }
};

// Whole vectors of a line; gives the number of elements.
template <bool kLayer>
inline Int normalise_vectors(std::uint16_t* to, const std::uint16_t* from, float rstd, float mean,
                             const float* weight, const float* bias, Int count) {
  const __m512 factor = _mm512_set1_ps(rstd), centre = _mm512_set1_ps(mean);
  Int k = 0;
  for (; k + 32 <= count; k += 32) {
    const NormVectors x = NormVectors::load(_mm512_loadu_si512(from + k));
    const __m512 low = _mm512_loadu_ps(weight + k), high = _mm512_loadu_ps(weight + k + 16);
    NormVectors y;
    if constexpr (kLayer) {
      y.low = _mm512_fmadd_ps((x.low - centre) * factor, low, _mm512_loadu_ps(bias + k));
      y.high = _mm512_fmadd_ps((x.high - centre) * factor, high, _mm512_loadu_ps(bias + k + 16));
    } else {
      const NormVectors scaled{x.low * factor, x.high * factor};
      const NormVectors rounded = NormVectors::load(scaled.narrowed());
      y.low = rounded.low * low;
      y.high = rounded.high * high;
    }
    _mm512_storeu_si512(to + k, y.narrowed());
  }
  return k;
}
#endif

#if defined(__AVX512BF16__)
inline constexpr bool kHasNormPairs = true;

// Pairs of two lines' elements by column: the norm of the first in the lower, that of the second in
// the upper bits.
struct NormPairs {
  __m512 first, second;

  static NormPairs of(__m512i words) {
    const __m512i upper = _mm512_set1_epi32(static_cast<int>(0xFFFF0000u));
    return {_mm512_castsi512_ps(_mm512_slli_epi32(words, 16)),
            _mm512_castsi512_ps(_mm512_and_si512(words, upper))};
  }
  __m512i words() const {
    const __m512i lines = (__m512i)_mm512_cvtne2ps_pbh(second, first);
    return _mm512_permutexvar_epi16(by_column(), lines);
  }
  // Elements 16 apart next to each other.
  static __m512i by_column() {
    alignas(64) static constexpr std::uint16_t kPlaces[] = {
        0, 16, 1, 17, 2,  18, 3,  19, 4,  20, 5,  21, 6,  22, 7,  23,
        8, 24, 9, 25, 10, 26, 11, 27, 12, 28, 13, 29, 14, 30, 15, 31};
    return _mm512_load_si512(kPlaces);
  }
};

// An rms norm of 32 columns of two lines, as pairs8_by_4 stores them.
inline void norm_pairs8_by_4(std::uint32_t* to, Int stride, const std::uint16_t* first,
                             const std::uint16_t* second, float first_rstd, float second_rstd,
                             const float* weight) {
#pragma GCC unroll 2
  for (int h = 0; h < 2; ++h) {
    const __m512i low = _mm512_castsi256_si512(
                      _mm256_loadu_si256(reinterpret_cast<const __m256i*>(first + 16 * h))),
                  both = _mm512_inserti64x4(
                      low, _mm256_loadu_si256(reinterpret_cast<const __m256i*>(second + 16 * h)),
                      1);
    NormPairs x = NormPairs::of(_mm512_permutexvar_epi16(NormPairs::by_column(), both));
    x.first *= _mm512_set1_ps(first_rstd);
    x.second *= _mm512_set1_ps(second_rstd);
    x = NormPairs::of(x.words());
    const __m512 w = _mm512_loadu_ps(weight + 16 * h);
    x.first *= w;
    x.second *= w;
    const __m512i words = x.words();
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(to + 2 * h * stride),
                        _mm512_castsi512_si256(words));
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(to + (2 * h + 1) * stride),
                        _mm512_extracti64x4_epi64(words, 1));
  }
}
#else
inline constexpr bool kHasNormPairs = false;
#endif

template <bool kLayer, class To, class T>
inline void normalise_elements(To* __restrict to, const T* __restrict from, float rstd, float mean,
                               const float* __restrict weight, const float* __restrict bias,
                               Int count) {
  Int k = 0;
#if defined(__AVX512BF16__)
  if constexpr (__is_same(To, std::uint16_t))
    k = normalise_vectors<kLayer>(to, from, rstd, mean, weight, bias, count);
#endif
  for (; k < count; ++k) {
    const float x = as_float(from[k]);
    if constexpr (kLayer)
      put_element(to + k, as_element<T>(norm_madd((x - mean) * rstd, weight[k], bias[k])));
    else
      put_element(to + k, as_element<T>(weight[k] * as_element<T>(x * rstd)));
  }
}

// `count` elements of line `line` from column `column` on, which lie at `from`, as the norm has
// them: in their own dtype, or f32 of it.
template <class To, class T>
inline void normalise_line(To* to, const T* from, const LineNorm& norm, Int line, Int column,
                           Int count) {
  const float* statistics = norm.statistics + line * norm.num_statistics;
  const float* weight = norm.weight + column;
  if (norm.bias != nullptr)
    normalise_elements<true>(to, from, statistics[0], statistics[1], weight, norm.bias + column,
                             count);
  else
    normalise_elements<false>(to, from, statistics[0], 0.0f, weight, nullptr, count);
}

// Whether lines of x are copied otherwise than as they lie in memory.
inline bool has_prologue(const Matrix& x) {
  return x.norm.statistics != nullptr || x.dropout.draws != nullptr;
}

// Columns [column, column + count) of line `line` of x, f32 or bf16, which lie at `from`, with its
// norm and dropout. x has one of them.
template <class T>
inline void put_prologue(T* to, const T* from, const Matrix& x, Int line, Int column, Int count) {
  constexpr DType kDType = __is_same(T, float) ? DType::kFloat32 : DType::kBFloat16;
  if (x.dropout.draws == nullptr) return normalise_line(to, from, x.norm, line, column, count);
  if (x.norm.statistics != nullptr) {
    normalise_line(to, from, x.norm, line, column, count);
    from = to;
  }
  x.dropout.drop(*x.dropout.draws, x.dropout.first_row + line, column, count, kDType,
                 reinterpret_cast<const std::byte*>(from), reinterpret_cast<std::byte*>(to));
}

}  // namespace
}  // namespace anabatic::kernels::cpu
