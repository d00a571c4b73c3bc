// SPDX-License-Identifier: Apache-2.0
// Operations on vectors of 32-bit elements for AVX-512 sources; only for translation units built
// for AVX-512.
#pragma once
#include <immintrin.h>

#include <cstdint>

#include "tensor/float4.h"

namespace anabatic::kernels::cpu {
namespace {

// Sixteen sums to bf16, as kernels::cpu::narrow has it.
inline void narrow_words(std::uint16_t* to, __m512 x) {
  const __m512i bits = _mm512_castps_si512(x), half = _mm512_srli_epi32(bits, 16);
  const __m512i to_even =
      _mm512_add_epi32(_mm512_and_si512(half, _mm512_set1_epi32(1)), _mm512_set1_epi32(0x7FFF));
  const __m512i rounded = _mm512_srli_epi32(_mm512_add_epi32(bits, to_even), 16);
  const __m512i quiet = _mm512_or_si512(half, _mm512_set1_epi32(0x40));
  const __m512i words =
      _mm512_mask_mov_epi32(rounded, _mm512_cmp_ps_mask(x, x, _CMP_UNORD_Q), quiet);
  _mm256_storeu_si256(reinterpret_cast<__m256i*>(to), _mm512_cvtepi32_epi16(words));
}
inline void narrow_words(std::uint16_t* to, const float* from) {
  narrow_words(to, _mm512_loadu_ps(from));
}

// Sixteen words past the caches; both 64-byte aligned.
inline void stream_words(float* to, const float* from) {
  _mm512_stream_si512(reinterpret_cast<__m512i*>(to), _mm512_load_si512(from));
}

inline void transpose_16x16(__m512i* r) {
  __m512i t[16];
#pragma GCC unroll 8
  for (int i = 0; i < 8; ++i) {
    t[2 * i] = _mm512_unpacklo_epi32(r[2 * i], r[2 * i + 1]);
    t[2 * i + 1] = _mm512_unpackhi_epi32(r[2 * i], r[2 * i + 1]);
  }
  // r[4g + c]: column c of every 128-bit lane, rows 4g to 4g + 3.
#pragma GCC unroll 4
  for (int i = 0; i < 4; ++i) {
    r[4 * i] = _mm512_unpacklo_epi64(t[4 * i], t[4 * i + 2]);
    r[4 * i + 1] = _mm512_unpackhi_epi64(t[4 * i], t[4 * i + 2]);
    r[4 * i + 2] = _mm512_unpacklo_epi64(t[4 * i + 1], t[4 * i + 3]);
    r[4 * i + 3] = _mm512_unpackhi_epi64(t[4 * i + 1], t[4 * i + 3]);
  }
  // Even (0x88) and odd (0xDD) lanes of two groups, twice: a 4 x 4 transpose of lanes.
#pragma GCC unroll 4
  for (int i = 0; i < 4; ++i) {
    t[i] = _mm512_shuffle_i32x4(r[i], r[4 + i], 0x88);
    t[4 + i] = _mm512_shuffle_i32x4(r[i], r[4 + i], 0xDD);
    t[8 + i] = _mm512_shuffle_i32x4(r[8 + i], r[12 + i], 0x88);
    t[12 + i] = _mm512_shuffle_i32x4(r[8 + i], r[12 + i], 0xDD);
  }
#pragma GCC unroll 4
  for (int i = 0; i < 4; ++i) {
    r[i] = _mm512_shuffle_i32x4(t[i], t[8 + i], 0x88);
    r[8 + i] = _mm512_shuffle_i32x4(t[i], t[8 + i], 0xDD);
    r[4 + i] = _mm512_shuffle_i32x4(t[4 + i], t[12 + i], 0x88);
    r[12 + i] = _mm512_shuffle_i32x4(t[4 + i], t[12 + i], 0xDD);
  }
}

// Sixteen rows of sixteen words, `stride` bytes apart, to [word][16], 64-byte aligned.
inline void transpose_words(void* to, const std::byte* from, std::int64_t stride) {
  __m512i rows[16];
#pragma GCC unroll 16
  for (int i = 0; i < 16; ++i) rows[i] = _mm512_loadu_si512(from + i * stride);
  transpose_16x16(rows);
#pragma GCC unroll 16
  for (int i = 0; i < 16; ++i) _mm512_store_si512(static_cast<std::byte*>(to) + i * 64, rows[i]);
}

// Adds pairs of signed bytes to sums of 16 bits, which hold 127 of them.
inline __m512i add_byte_pairs(__m512i sums, __m512i bytes) {
  return _mm512_add_epi16(sums, _mm512_maddubs_epi16(_mm512_set1_epi8(1), bytes));
}
// The sums of words' four bytes, from those of their pairs.
inline __m512i byte_sums(__m512i pair_sums) {
  return _mm512_madd_epi16(pair_sums, _mm512_set1_epi16(1));
}

#ifdef __AVX512BF16__
// What GEMM engines that multiply pairs of bf16 share.
struct PairWords {
  static void stream(float* to, const float* from) { stream_words(to, from); }
  static void end_stream() { _mm_sfence(); }
  // As kernels::cpu::narrow has it, but for denormal sums, which no product has here.
  static void narrow(std::uint16_t* to, const float* from) {
    const __m256bh words = _mm512_cvtneps_pbh(_mm512_loadu_ps(from));
    __builtin_memcpy(to, &words, sizeof words);
  }
  static void transpose(void* to, const std::byte* from, std::int64_t stride) {
    transpose_words(to, from, stride);
  }
  // 32 elements in int8 times their scale, to bf16, 64-byte aligned.
  static void dequantize(std::uint16_t* to, const std::int8_t* from, float scale) {
    const auto scaled = [scale](const std::int8_t* bytes) __attribute__((always_inline)) {
      const __m512i words =
          _mm512_cvtepi8_epi32(_mm_loadu_si128(reinterpret_cast<const __m128i*>(bytes)));
      return _mm512_mul_ps(_mm512_cvtepi32_ps(words), _mm512_set1_ps(scale));
    };
    _mm512_store_si512(to, (__m512i)_mm512_cvtne2ps_pbh(scaled(from + 16), scaled(from)));
  }
  // 32 elements of MXFP4, a scale for each half of them, to bf16, 64-byte aligned: by a table of
  // the values of all elements with either scale.
  static void dequantize_float4(std::uint16_t* to, const std::uint8_t* pairs, E8M0Powers low,
                                E8M0Powers high) {
    const auto values = [](E8M0Powers scale) __attribute__((always_inline)) {
      const __m512 small =
          _mm512_mul_ps(_mm512_loadu_ps(kFloat4Doubled), _mm512_set1_ps(scale.first));
      const __m512 scaled = _mm512_mul_ps(small, _mm512_set1_ps(scale.second));
      return _mm512_cvtepi32_epi16(_mm512_srli_epi32(_mm512_castps_si512(scaled), 16));
    };
    const __m512i table = _mm512_inserti64x4(_mm512_castsi256_si512(values(low)), values(high), 1);
    const __m512i bytes =
        _mm512_cvtepu8_epi32(_mm_loadu_si128(reinterpret_cast<const __m128i*>(pairs)));
    const __m512i first = _mm512_and_si512(bytes, _mm512_set1_epi32(0x0F)),
                  second = _mm512_slli_epi32(_mm512_and_si512(bytes, _mm512_set1_epi32(0xF0)), 12);
    // The entries of the second scale come after 16 of the first.
    const __m512i upper =
        _mm512_inserti64x4(_mm512_setzero_si512(), _mm256_set1_epi32(0x100010), 1);
    const __m512i index = _mm512_or_si512(_mm512_or_si512(first, second), upper);
    _mm512_store_si512(to, _mm512_permutexvar_epi16(index, table));
  }
};
#endif

}  // namespace
}  // namespace anabatic::kernels::cpu
