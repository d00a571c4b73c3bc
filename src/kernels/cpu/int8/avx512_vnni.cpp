// SPDX-License-Identifier: Apache-2.0
#include "kernels/cpu/int8/lines.h"

#if defined(__AVX512VNNI__)
#include "kernels/cpu/int8/block.h"
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
  // Scales of the columns of panel v and block k.
  static inline __attribute__((always_inline)) __m512 b_scales(const Int8Tile& in, Int k, int v) {
    const BFloat16* from = in.b_scales[v] + k * in.b_scale_block;
    if (in.b_has_tiles) return _mm512_set1_ps(widen(from->bits));
    return _mm512_castsi512_ps(_mm512_slli_epi32(
        _mm512_cvtepu16_epi32(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(from))), 16));
  }

  // R rows by V panels.
  template <int R, int V>
  static __attribute__((noinline)) void run(const Int8Tile& in) {
    __m512 chain[R][V];
#pragma GCC unroll 4
    for (int i = 0; i < R; ++i)
#pragma GCC unroll 3
      for (int v = 0; v < V; ++v)
        chain[i][v] = in.from != nullptr
                          ? _mm512_loadu_ps(in.from + i * in.from_stride + v * in.from_panel_stride)
                          : _mm512_setzero_ps();
    const __m512i sign = _mm512_set1_epi32(in.a_is_unsigned ? 0 : static_cast<int>(0x80808080u));
    const __m512i compensates = _mm512_set1_epi32(in.a_is_unsigned ? 0 : -1);
    const bool has_second = in.a_second != nullptr || in.b_second != nullptr;
    const std::int8_t *a = in.a, *b = in.b, *ahead = in.ahead;
    Int k = 0;
    for (Int left = in.units; left > 0; left -= kBlockUnits, ++k) {
      for (Int n = 0; n < in.ahead_lines; ++n, ahead += 64) __builtin_prefetch(ahead, 0, 2);
      const std::int8_t *p = a, *q = b;
      const std::int32_t* start = in.compensation;
      // The sums of the first values, then those of the second ones where there are some.
      for (bool is_second = false;; is_second = true) {
        __m512i sums[R][V];
#pragma GCC unroll 3
        for (int v = 0; v < V; ++v) {
          const __m512i value = _mm512_and_si512(
              compensates, _mm512_load_si512(start + k * kInt8Panel + v * in.compensation_panel));
#pragma GCC unroll 4
          for (int i = 0; i < R; ++i) sums[i][v] = value;
        }
        const auto add_unit = [&]() __attribute__((always_inline)) {
          __m512i right[V];
#pragma GCC unroll 3
          for (int v = 0; v < V; ++v) right[v] = _mm512_load_si512(q + v * in.b_panel);
#pragma GCC unroll 4
          for (int i = 0; i < R; ++i) {
            std::int32_t word;
            __builtin_memcpy(&word, p + i * in.a_row, sizeof word);
            const __m512i codes = _mm512_xor_si512(_mm512_set1_epi32(word), sign);
#pragma GCC unroll 3
            for (int v = 0; v < V; ++v) sums[i][v] = dot(sums[i][v], codes, right[v]);
          }
          p += in.a_unit;
          q += kInt8Panel * kInt8Unit;
        };
        Int u = smaller(kBlockUnits, left);
        for (; u >= 4; u -= 4) {
          add_unit();
          add_unit();
          add_unit();
          add_unit();
        }
        for (; u > 0; --u) add_unit();
        __m512 right_scales[V];
#pragma GCC unroll 3
        for (int v = 0; v < V; ++v) right_scales[v] = b_scales(in, k, v);
#pragma GCC unroll 4
        for (int i = 0; i < R; ++i) {
          const __m512 scale =
              _mm512_set1_ps(widen(in.a_scales[i * in.a_scale_row + k * in.a_scale_block].bits));
#pragma GCC unroll 3
          for (int v = 0; v < V; ++v) {
            __m512 both = _mm512_mul_ps(scale, right_scales[v]);
            const __m512 value = _mm512_cvtepi32_ps(sums[i][v]);
            if (!is_second) {
              chain[i][v] = _mm512_fmadd_ps(value, both, chain[i][v]);
            } else {
              both = _mm512_mul_ps(both, _mm512_set1_ps(kSecondScale));
              chain[i][v] = _mm512_mask_mov_ps(chain[i][v],
                                               static_cast<__mmask16>(falling_columns(in, k, i, v)),
                                               _mm512_fmadd_ps(value, both, chain[i][v]));
            }
          }
        }
        if (is_second || !has_second || !falls_back<R, V>(in, k)) break;
        p = in.a_second != nullptr ? in.a_second + (a - in.a) : a;
        q = in.b_second != nullptr ? in.b_second + (b - in.b) : b;
        if (in.b_second != nullptr) start = in.second_compensation;
      }
      a += kBlockUnits * in.a_unit;
      b += kInt8Block * kInt8Panel;
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

  template <int R, int V>
  static bool falls_back(const Int8Tile& in, Int k) {
    unsigned any = 0;
    for (int i = 0; i < R; ++i)
      for (int v = 0; v < V; ++v) any |= falling_columns(in, k, i, v);
    return any != 0;
  }

  static TileFunction tile(int rows, int panels) {
    static constexpr TileFunction kTiles[4][3] = {{&run<1, 1>, &run<1, 2>, &run<1, 3>},
                                                  {&run<2, 1>, &run<2, 2>, &run<2, 3>},
                                                  {&run<3, 1>, &run<3, 2>, &run<3, 3>},
                                                  {&run<4, 1>, &run<4, 2>, &run<4, 3>}};
    return kTiles[rows - 1][panels - 1];
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
