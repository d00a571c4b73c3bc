// SPDX-License-Identifier: Apache-2.0
// Tiles of int8 products in registers of 256 bits. Compiled once an instruction set: see
// gemm_pack.h for what that forbids.
#pragma once
#include <immintrin.h>

#include "kernels/cpu/int8/block.h"

namespace anabatic::kernels::cpu {
namespace {

// Sums: kRows, and block_sums<R>(in, units, a, b, compensation, values), the exact sums of a block
// of R rows by a panel as floats, 8 columns a register.
template <class Sums>
struct Int8In256 {
  static constexpr Int kRows = Sums::kRows, kPanels = 1;
  static constexpr bool kRounds = false;

  // Scales of eight columns of block k, from column n of the panel on.
  static inline __attribute__((always_inline)) __m256 b_scales(const Int8Tile& in, Int k, Int n) {
    const BFloat16* from = in.b_scales[0] + k * in.b_scale_block;
    if (in.b_has_tiles) return _mm256_set1_ps(widen(from->bits));
    return _mm256_castsi256_ps(_mm256_slli_epi32(
        _mm256_cvtepu16_epi32(_mm_loadu_si128(reinterpret_cast<const __m128i*>(from + n))), 16));
  }

  // The sums of block k, of first or second values.
  template <int R>
  static inline __attribute__((always_inline)) void block_sums(const Int8Tile& in, Int k,
                                                               bool is_second,
                                                               __m256 (&values)[R][2]) {
    const bool of_a = is_second && in.a_second != nullptr,
               of_b = is_second && in.b_second != nullptr;
    Sums::template block_sums<R>(
        in, units_of_block(in.units, k), (of_a ? in.a_second : in.a) + k * kBlockUnits * in.a_unit,
        (of_b ? in.b_second : in.b) + k * kInt8Block * kInt8Panel,
        (of_b ? in.second_compensation : in.compensation) + k * kInt8Panel, values);
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
      block_sums<R>(in, k, false, values);
      for (int i = 0; i < R; ++i)
        for (int v = 0; v < 2; ++v)
          chain[i][v] = _mm256_fmadd_ps(values[i][v], scales[i][v], chain[i][v]);
      unsigned columns[R] = {}, any = 0;  // that fall back, a bit each
      for (int i = 0; i < R; ++i) {
        columns[i] = falling_columns(in, k, i);
        any |= columns[i];
      }
      if (any == 0) continue;
      block_sums<R>(in, k, true, values);
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

  static TileFunction tile(int rows, int) {
    if constexpr (kRows == 2) {
      return rows == 2 ? &run<2> : &run<1>;
    } else {
      static constexpr TileFunction kTiles[] = {&run<1>, &run<2>, &run<3>, &run<4>};
      return kTiles[rows - 1];
    }
  }
  static void narrow(std::uint16_t* to, const float* from) {
    for (Int n = 0; n < kInt8Panel; ++n) to[n] = cpu::narrow(from[n]);
  }
  static void stream(float* to, const float* from) {
    for (Int n = 0; n < kInt8Panel; n += 8) _mm256_stream_ps(to + n, _mm256_load_ps(from + n));
  }
  static void end_stream() { _mm_sfence(); }
};

}  // namespace
}  // namespace anabatic::kernels::cpu
