// SPDX-License-Identifier: Apache-2.0
#include "kernels/cpu/int8/lines.h"

#if defined(__AVX512VNNI__)
#include "kernels/cpu/int8/block.h"
#include "kernels/cpu/int8/second_sums_vnni.h"
#include "kernels/cpu/words_avx512.h"

namespace anabatic::kernels::cpu {
namespace {

// VPDPBUSD multiplies unsigned by signed bytes. So signed values of A gain 128 as they are read,
// and the sums of a block start from B's compensation.
struct Int8Vnni {
  // 12 sums in f32 and 12 of integers stay in registers, with 3 of B.
  static constexpr Int kRows = 4, kPanels = 3;
  static constexpr bool kRounds = true;

  // g++ 12 copies the sums of the intrinsic through the stack, which costs half of the speed. Where
  // tests emulate the instruction, its name is a macro.
  static inline __attribute__((always_inline)) __m512i dot(__m512i sum, __m512i a, __m512i b) {
#if defined(_mm512_dpbusd_epi32)
    return _mm512_dpbusd_epi32(sum, a, b);
#else
    asm("vpdpbusd %2, %1, %0" : "+v"(sum) : "v"(a), "v"(b));
    return sum;
#endif
  }
  // Scales of a panel's columns in a block.
  static inline __attribute__((always_inline)) __m512 b_scales(const Int8Tile& in,
                                                               const BFloat16* from) {
    if (in.b_has_tiles) return _mm512_set1_ps(widen(from->bits));
    return _mm512_castsi512_ps(_mm512_slli_epi32(
        _mm512_cvtepu16_epi32(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(from))), 16));
  }

  // The sums of a block of `units` units, of R rows by V panels.
  template <int R, int V>
  static inline __attribute__((always_inline)) void sum_block(const Int8Tile& in,
                                                              const std::int8_t* a,
                                                              const std::int8_t* b,
                                                              const std::int32_t* compensation,
                                                              Int units, __m512i (&sums)[R][V]) {
    const __m512i sign = _mm512_set1_epi32(in.a_is_unsigned ? 0 : static_cast<int>(0x80808080u));
    const __m512i compensates = _mm512_set1_epi32(in.a_is_unsigned ? 0 : -1);
#pragma GCC unroll 3
    for (int v = 0; v < V; ++v) {
      const __m512i value = _mm512_and_si512(
          compensates, _mm512_load_si512(compensation + v * in.compensation_panel));
#pragma GCC unroll 4
      for (int i = 0; i < R; ++i) sums[i][v] = value;
    }
    const auto add_unit = [&]() __attribute__((always_inline)) {
      __m512i right[V];
#pragma GCC unroll 3
      for (int v = 0; v < V; ++v) right[v] = _mm512_load_si512(b + v * in.b_panel);
#pragma GCC unroll 4
      for (int i = 0; i < R; ++i) {
        std::int32_t word;
        __builtin_memcpy(&word, a + i * in.a_row, sizeof word);
        const __m512i codes = _mm512_xor_si512(_mm512_set1_epi32(word), sign);
#pragma GCC unroll 3
        for (int v = 0; v < V; ++v) sums[i][v] = dot(sums[i][v], codes, right[v]);
      }
      a += in.a_unit;
      b += kInt8Panel * kInt8Unit;
    };
    for (; units >= 4; units -= 4) {
      add_unit();
      add_unit();
      add_unit();
      add_unit();
    }
    for (; units > 0; --units) add_unit();
  }

  using SecondSums = Int8SecondVnni<Int8Vnni>;

  // Adds what second values of a block count. `right`: the scales of B.
  template <int R, int V>
  static inline __attribute__((always_inline)) void add_second(const Int8Tile& in,
                                                               const Int8SecondBlock& second,
                                                               const BFloat16* a_scales,
                                                               const __m512 (&right)[V],
                                                               __m512 (&chain)[R][V]) {
    const auto rows = static_cast<unsigned>(second.rows >> in.second_row) & 15u;
    const auto add = [&](int i, int v, __m512 left, __m512 sum) __attribute__((always_inline)) {
      const __m512 both =
          _mm512_mul_ps(_mm512_mul_ps(left, right[v]), _mm512_set1_ps(kSecondScale));
      chain[i][v] = _mm512_mask_mov_ps(chain[i][v], static_cast<__mmask16>(second.columns[v]),
                                       _mm512_fmadd_ps(sum, both, chain[i][v]));
    };
    if (second.num_quads == 0) {
      const std::uint64_t before = (std::uint64_t{1} << in.second_row) - 1;
      const float* sums = second.sums + __builtin_popcountll(second.rows & before) * kInt8Columns;
#pragma GCC unroll 4
      for (int i = 0; i < R; ++i) {
        if ((rows >> i & 1u) == 0) continue;
        const __m512 left = _mm512_set1_ps(widen(a_scales[i * in.a_scale_row].bits));
#pragma GCC unroll 3
        for (int v = 0; v < V; ++v) add(i, v, left, _mm512_loadu_ps(sums + v * kInt8Panel));
        sums += kInt8Columns;
      }
      return;
    }
    // The panel of A among those that sums were made of: its lanes begin with any multiple of 4.
    const float* sums = second.sums + ((in.second_row - in.a_lane + 15) / 16) * 64 + in.a_lane;
    __m512i places[V];
#pragma GCC unroll 3
    for (int v = 0; v < V; ++v) places[v] = _mm512_load_si512(second.places[v]);
#pragma GCC unroll 4
    for (int i = 0; i < R; ++i, sums += 16) {
      __m512 columns = _mm512_broadcast_f32x4(_mm_load_ps(sums));
      const auto take = [&](Int quad, __mmask16 lanes) __attribute__((always_inline)) {
        columns = _mm512_mask_broadcast_f32x4(columns, lanes,
                                              _mm_load_ps(sums + quad * second.quad_stride));
      };
      if (second.num_quads > 1) take(1, 0x00F0);
      if (second.num_quads > 2) take(2, 0x0F00);
      if (second.num_quads > 3) take(3, 0xF000);
      const __m512 left = _mm512_set1_ps(widen(a_scales[i * in.a_scale_row].bits));
#pragma GCC unroll 3
      for (int v = 0; v < V; ++v) add(i, v, left, _mm512_permutexvar_ps(places[v], columns));
    }
  }

  // R rows by V panels.
  template <int R, int V, bool kAddsSecond>
  static __attribute__((noinline)) void run(const Int8Tile& in) {
    __m512 chain[R][V];
#pragma GCC unroll 4
    for (int i = 0; i < R; ++i)
#pragma GCC unroll 3
      for (int v = 0; v < V; ++v)
        chain[i][v] = in.from != nullptr
                          ? _mm512_loadu_ps(in.from + i * in.from_stride + v * in.from_panel_stride)
                          : _mm512_setzero_ps();
    const std::int8_t *a = in.a, *b = in.b, *ahead = in.ahead;
    const std::int32_t* compensation = in.compensation;
    const BFloat16* a_scales = in.a_scales;
    Int k = 0;
    for (Int left = in.units; left > 0; left -= kBlockUnits, ++k) {
      for (Int n = 0; n < in.ahead_lines; ++n, ahead += 64) __builtin_prefetch(ahead, 0, 2);
      __m512i sums[R][V];
      sum_block<R, V>(in, a, b, compensation, smaller(kBlockUnits, left), sums);
      __m512 right[V];
#pragma GCC unroll 3
      for (int v = 0; v < V; ++v) right[v] = b_scales(in, in.b_scales[v] + k * in.b_scale_block);
#pragma GCC unroll 4
      for (int i = 0; i < R; ++i) {
        const __m512 left_scale = _mm512_set1_ps(widen(a_scales[i * in.a_scale_row].bits));
#pragma GCC unroll 3
        for (int v = 0; v < V; ++v)
          chain[i][v] = _mm512_fmadd_ps(_mm512_cvtepi32_ps(sums[i][v]),
                                        _mm512_mul_ps(left_scale, right[v]), chain[i][v]);
      }
      if constexpr (kAddsSecond)
        if ((in.second[k].rows >> in.second_row & 15) != 0) [[unlikely]]
          add_second<R, V>(in, in.second[k], a_scales, right, chain);
      a += kBlockUnits * in.a_unit;
      b += kInt8Block * kInt8Panel;
      compensation += kInt8Panel;
      a_scales += in.a_scale_block;
      // There are more strides than registers. They are read again, not kept in those of vectors.
      asm volatile("" ::: "memory");
    }
#pragma GCC unroll 4
    for (int i = 0; i < R; ++i)
#pragma GCC unroll 3
      for (int v = 0; v < V; ++v) {
        const Int place = i * in.stride + v * in.panel_stride;
        if (in.rounds)
          narrow_words(reinterpret_cast<std::uint16_t*>(in.to) + place, chain[i][v]);
        else if (in.streams)
          _mm512_stream_si512(reinterpret_cast<__m512i*>(in.to + place),
                              _mm512_castps_si512(chain[i][v]));
        else
          _mm512_storeu_ps(in.to + place, chain[i][v]);
      }
  }

  template <bool kAddsSecond>
  static constexpr TileFunction kTiles[4][3] = {
      {&run<1, 1, kAddsSecond>, &run<1, 2, kAddsSecond>, &run<1, 3, kAddsSecond>},
      {&run<2, 1, kAddsSecond>, &run<2, 2, kAddsSecond>, &run<2, 3, kAddsSecond>},
      {&run<3, 1, kAddsSecond>, &run<3, 2, kAddsSecond>, &run<3, 3, kAddsSecond>},
      {&run<4, 1, kAddsSecond>, &run<4, 2, kAddsSecond>, &run<4, 3, kAddsSecond>}};
  static TileFunction tile(int rows, int panels, bool adds_second) {
    return (adds_second ? kTiles<true> : kTiles<false>)[rows - 1][panels - 1];
  }
  static void narrow(std::uint16_t* to, const float* from) { narrow_words(to, from); }
  static void stream(float* to, const float* from) { stream_words(to, from); }
  static void end_stream() { _mm_sfence(); }
};

constexpr GemmEngine kInt8Engine = int8_engine<Int8Vnni>("avx512_vnni", &avx512::int8_coding);

}  // namespace

const GemmEngine* gemm_int8_avx512_vnni() { return &kInt8Engine; }

}  // namespace anabatic::kernels::cpu

#else

namespace anabatic::kernels::cpu {
const GemmEngine* gemm_int8_avx512_vnni() { return nullptr; }
}  // namespace anabatic::kernels::cpu

#endif
