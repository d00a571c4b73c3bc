// SPDX-License-Identifier: Apache-2.0
#include "kernels/cpu/int8/lines.h"

#if defined(__AVX2__) && defined(__FMA__)
#include <immintrin.h>

#include "kernels/cpu/int8/block.h"

namespace anabatic::kernels::cpu {
namespace {

// VPMADDWD on int8 values widened to 16 bits; VPMADDUBSW, which takes bytes, saturates. A sum of a
// column lies in two neighbouring lanes, four columns a register.
struct Int8Avx2 {
  static constexpr Int kRows = 2, kPanels = 1;
  static constexpr bool kRounds = false;

  static inline __attribute__((always_inline)) __m256i widened(const std::int8_t* from) {
    return _mm256_cvtepi8_epi16(_mm_load_si128(reinterpret_cast<const __m128i*>(from)));
  }
  // Four int8 values as words of 16 bits, four times. `bits` keeps those of unsigned ones.
  static inline __attribute__((always_inline)) __m256i broadcast(const std::int8_t* from,
                                                                 __m256i bits) {
    std::int32_t word;
    __builtin_memcpy(&word, from, sizeof word);
    return _mm256_and_si256(_mm256_broadcastq_epi64(_mm_cvtepi8_epi16(_mm_cvtsi32_si128(word))),
                            bits);
  }
  // Scales of eight columns of block k, from column n of the panel on.
  static inline __attribute__((always_inline)) __m256 b_scales(const Int8Tile& in, Int k, Int n) {
    const BFloat16* from = in.b_scales[0] + k * in.b_scale_block;
    if (in.b_has_tiles) return _mm256_set1_ps(widen(from->bits));
    return _mm256_castsi256_ps(_mm256_slli_epi32(
        _mm256_cvtepu16_epi32(_mm_loadu_si128(reinterpret_cast<const __m128i*>(from + n))), 16));
  }

  // The exact sums of block k, as floats: 8 columns a register.
  template <int R>
  static inline __attribute__((always_inline)) void block_sums(const Int8Tile& in, Int k,
                                                               const std::int8_t* a,
                                                               const std::int8_t* b,
                                                               __m256 (&values)[R][2]) {
    a += k * kBlockUnits * in.a_unit;
    b += k * kInt8Block * kInt8Panel;
    const __m256i bits = _mm256_set1_epi16(in.a_is_unsigned ? 0xFF : -1);
    __m256i sums[R][4];
#pragma GCC unroll 2
    for (int i = 0; i < R; ++i)
#pragma GCC unroll 4
      for (int v = 0; v < 4; ++v) sums[i][v] = _mm256_setzero_si256();
    for (Int u = units_of_block(in.units, k); u > 0; --u) {
      __m256i left[R];
#pragma GCC unroll 2
      for (int i = 0; i < R; ++i) left[i] = broadcast(a + i * in.a_row, bits);
#pragma GCC unroll 4
      for (int v = 0; v < 4; ++v) {
        const __m256i right = widened(b + v * 16);
#pragma GCC unroll 2
        for (int i = 0; i < R; ++i)
          sums[i][v] = _mm256_add_epi32(sums[i][v], _mm256_madd_epi16(left[i], right));
      }
      a += in.a_unit;
      b += kInt8Panel * kInt8Unit;
    }
#pragma GCC unroll 2
    for (int i = 0; i < R; ++i)
#pragma GCC unroll 2
      for (int v = 0; v < 2; ++v)
        values[i][v] = _mm256_cvtepi32_ps(_mm256_permute4x64_epi64(
            _mm256_hadd_epi32(sums[i][2 * v], sums[i][2 * v + 1]), 0b11011000));
  }

  // Lanes of columns whose bit of `columns` is set.
  static __m256 lanes_of(unsigned columns) {
    const __m256i bit = _mm256_setr_epi32(1, 2, 4, 8, 16, 32, 64, 128);
    return _mm256_castsi256_ps(_mm256_cmpeq_epi32(
        _mm256_and_si256(_mm256_set1_epi32(static_cast<int>(columns)), bit), bit));
  }

  template <int R>
  static __attribute__((noinline)) void run(const Int8Tile& in) {
    __m256 chain[R][2];
    for (int i = 0; i < R; ++i)
      for (int v = 0; v < 2; ++v)
        chain[i][v] = in.from != nullptr ? _mm256_loadu_ps(in.from + i * in.from_stride + 8 * v)
                                         : _mm256_setzero_ps();
    for (Int k = 0; k * kBlockUnits < in.units; ++k) {
      __m256 values[R][2], scales[R][2];
      for (int i = 0; i < R; ++i) {
        const __m256 scale =
            _mm256_set1_ps(widen(in.a_scales[i * in.a_scale_row + k * in.a_scale_block].bits));
        for (int v = 0; v < 2; ++v) scales[i][v] = _mm256_mul_ps(scale, b_scales(in, k, 8 * v));
      }
      block_sums<R>(in, k, in.a, in.b, values);
      for (int i = 0; i < R; ++i)
        for (int v = 0; v < 2; ++v)
          chain[i][v] = _mm256_fmadd_ps(values[i][v], scales[i][v], chain[i][v]);
      unsigned columns[R] = {}, any = 0;  // that fall back, a bit each
      for (int i = 0; i < R; ++i) {
        columns[i] = falling_columns(in, k, i, 0);
        any |= columns[i];
      }
      if (any == 0) continue;
      block_sums<R>(in, k, in.a_second != nullptr ? in.a_second : in.a,
                    in.b_second != nullptr ? in.b_second : in.b, values);
      for (int i = 0; i < R; ++i)
        for (int v = 0; v < 2; ++v)
          chain[i][v] = _mm256_blendv_ps(
              chain[i][v],
              _mm256_fmadd_ps(values[i][v],
                              _mm256_mul_ps(scales[i][v], _mm256_set1_ps(kSecondScale)),
                              chain[i][v]),
              lanes_of(columns[i] >> 8 * v));
    }
    for (int i = 0; i < R; ++i)
      for (int v = 0; v < 2; ++v) {
        float* to = in.to + i * in.stride + 8 * v;
        if (in.streams)
          _mm256_stream_ps(to, chain[i][v]);
        else
          _mm256_storeu_ps(to, chain[i][v]);
      }
  }

  static TileFunction tile(int rows, int) { return rows == 2 ? &run<2> : &run<1>; }
  static void narrow(std::uint16_t* to, const float* from) {
    for (Int n = 0; n < kInt8Panel; ++n) to[n] = cpu::narrow(from[n]);
  }
  static void stream(float* to, const float* from) {
    for (Int n = 0; n < kInt8Panel; n += 8) _mm256_stream_ps(to + n, _mm256_load_ps(from + n));
  }
  static void end_stream() { _mm_sfence(); }
};

constexpr GemmEngine kInt8Engine = int8_engine<Int8Avx2>("avx2", &avx2::int8_coding);

}  // namespace

const GemmEngine* gemm_int8_avx2() { return &kInt8Engine; }

}  // namespace anabatic::kernels::cpu

#else

namespace anabatic::kernels::cpu {
const GemmEngine* gemm_int8_avx2() { return nullptr; }
}  // namespace anabatic::kernels::cpu

#endif
