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

  // Likewise of one row. A few sums would wait for each other, so each is four, of every fourth
  // unit.
  template <int V>
  static inline __attribute__((always_inline)) void sum_row(const Int8Tile& in,
                                                            const std::int8_t* a,
                                                            const std::int8_t* b,
                                                            const std::int32_t* compensation,
                                                            Int units, __m512i (&sums)[V]) {
    constexpr Int kUnitBytes = kInt8Panel * kInt8Unit;
    const __m512i sign = _mm512_set1_epi32(static_cast<int>(0x80808080u));
    __m512i parts[4][V];
#pragma GCC unroll 3
    for (int v = 0; v < V; ++v) {
      parts[0][v] = _mm512_load_si512(compensation + v * in.compensation_panel);
      parts[1][v] = parts[2][v] = parts[3][v] = _mm512_setzero_si512();
    }
    const auto add_unit = [&](int part) __attribute__((always_inline)) {
      std::int32_t word;
      __builtin_memcpy(&word, a, sizeof word);
      const __m512i codes = _mm512_xor_si512(_mm512_set1_epi32(word), sign);
#pragma GCC unroll 3
      for (int v = 0; v < V; ++v)
        parts[part][v] = dot(parts[part][v], codes, _mm512_load_si512(b + v * in.b_panel));
      a += in.a_unit;
      b += kUnitBytes;
    };
    for (; units >= 4; units -= 4) {
      add_unit(0);
      add_unit(1);
      add_unit(2);
      add_unit(3);
    }
    for (; units > 0; --units) add_unit(0);
#pragma GCC unroll 3
    for (int v = 0; v < V; ++v)
      sums[v] = _mm512_add_epi32(_mm512_add_epi32(parts[0][v], parts[1][v]),
                                 _mm512_add_epi32(parts[2][v], parts[3][v]));
  }

  // What row i's second values in block k count.
  template <int V>
  static inline __attribute__((always_inline)) void add_second_row(const Int8Tile& in, Int k, int i,
                                                                   __m512* chains) {
    __m512i sums[V];
    sum_row<V>(in, in.a_second + k * kBlockUnits * in.a_unit + i * in.a_row,
               in.b + k * kInt8Block * kInt8Panel, in.compensation + k * kInt8Panel,
               units_of_block(in.units, k), sums);
    const __m512 scale =
        _mm512_set1_ps(widen(in.a_scales[i * in.a_scale_row + k * in.a_scale_block].bits));
#pragma GCC unroll 3
    for (int v = 0; v < V; ++v) {
      const __m512 both =
          _mm512_mul_ps(_mm512_mul_ps(scale, b_scales(in, in.b_scales[v] + k * in.b_scale_block)),
                        _mm512_set1_ps(kSecondScale));
      chains[v] = _mm512_fmadd_ps(_mm512_cvtepi32_ps(sums[v]), both, chains[v]);
    }
  }

  // What the second values of panel v of B count in block k, of R rows by V panels. Each sum is
  // two, of every other unit, as sum_row has four.
  template <int R, int V>
  static inline __attribute__((always_inline)) void add_second_panel(const Int8Tile& in, Int k,
                                                                     int v, __m512* chains) {
    const __m512i sign = _mm512_set1_epi32(in.a_is_unsigned ? 0 : static_cast<int>(0x80808080u));
    const __m512i compensates = _mm512_set1_epi32(in.a_is_unsigned ? 0 : -1);
    const std::int8_t *a = in.a + k * kBlockUnits * in.a_unit,
                      *b = in.b_second + k * kInt8Block * kInt8Panel + v * in.b_panel;
    __m512i parts[2][R];
    const __m512i value = _mm512_and_si512(
        compensates,
        _mm512_load_si512(in.second_compensation + k * kInt8Panel + v * in.compensation_panel));
#pragma GCC unroll 4
    for (int i = 0; i < R; ++i) {
      parts[0][i] = value;
      parts[1][i] = _mm512_setzero_si512();
    }
    const auto add_unit = [&](int part) __attribute__((always_inline)) {
      const __m512i right = _mm512_load_si512(b);
#pragma GCC unroll 4
      for (int i = 0; i < R; ++i) {
        std::int32_t word;
        __builtin_memcpy(&word, a + i * in.a_row, sizeof word);
        parts[part][i] =
            dot(parts[part][i], _mm512_xor_si512(_mm512_set1_epi32(word), sign), right);
      }
      a += in.a_unit;
      b += kInt8Panel * kInt8Unit;
    };
    Int units = units_of_block(in.units, k);
    for (; units >= 2; units -= 2) {
      add_unit(0);
      add_unit(1);
    }
    if (units > 0) add_unit(0);
    const __m512 right_scale = b_scales(in, in.b_scales[v] + k * in.b_scale_block);
    const auto columns = static_cast<__mmask16>(falling_columns(in, k, 0, v));
#pragma GCC unroll 4
    for (int i = 0; i < R; ++i) {
      const __m512 scale =
          _mm512_set1_ps(widen(in.a_scales[i * in.a_scale_row + k * in.a_scale_block].bits));
      const __m512 both =
          _mm512_mul_ps(_mm512_mul_ps(scale, right_scale), _mm512_set1_ps(kSecondScale));
      __m512& chain = chains[i * V + v];
      const __m512i sum = _mm512_add_epi32(parts[0][i], parts[1][i]);
      chain =
          _mm512_mask_mov_ps(chain, columns, _mm512_fmadd_ps(_mm512_cvtepi32_ps(sum), both, chain));
    }
  }

  // Adds what the second values of block k count, where some fall back. `chains` is [R][V].
  template <int R, int V>
  static __attribute__((noinline)) void add_second(const Int8Tile& in, Int k, __m512* chains) {
    const Int before_a = k * kBlockUnits * in.a_unit, before_b = k * kInt8Block * kInt8Panel;
    const bool is_left = in.a_second != nullptr;
    if (!is_left) {  // panels apart, unless all of them fall back
      int count = 0;
      for (int v = 0; v < V; ++v) count += in.b_falls_back[v * in.b_flag_panel + k] != 0 ? 1 : 0;
      if (count < V || V == 1) {
        for (int v = 0; v < V; ++v)
          if (in.b_falls_back[v * in.b_flag_panel + k] != 0)
            add_second_panel<R, V>(in, k, v, chains);
        return;
      }
    } else {  // rows apart, unless most of them fall back
      int count = 0;
      for (int i = 0; i < R; ++i) count += row_falls_back(in, k, i) ? 1 : 0;
      if (2 * count <= R || R == 1) {
        for (int i = 0; i < R; ++i)
          if (row_falls_back(in, k, i)) add_second_row<V>(in, k, i, chains + i * V);
        return;
      }
    }
    __m512i sums[R][V];
    sum_block<R, V>(in, (is_left ? in.a_second : in.a) + before_a,
                    (is_left ? in.b : in.b_second) + before_b,
                    (is_left ? in.compensation : in.second_compensation) + k * kInt8Panel,
                    units_of_block(in.units, k), sums);
    for (int i = 0; i < R; ++i) {
      const __m512 scale =
          _mm512_set1_ps(widen(in.a_scales[i * in.a_scale_row + k * in.a_scale_block].bits));
      for (int v = 0; v < V; ++v) {
        const __m512 both =
            _mm512_mul_ps(_mm512_mul_ps(scale, b_scales(in, in.b_scales[v] + k * in.b_scale_block)),
                          _mm512_set1_ps(kSecondScale));
        __m512& chain = chains[i * V + v];
        chain = _mm512_mask_mov_ps(chain, static_cast<__mmask16>(falling_columns(in, k, i, v)),
                                   _mm512_fmadd_ps(_mm512_cvtepi32_ps(sums[i][v]), both, chain));
      }
    }
  }

  // Whether something of block k falls back.
  template <int R, int V>
  static inline __attribute__((always_inline)) bool falls_back(const Int8Tile& in, Int k) {
    unsigned any = 0;
    if (in.a_second != nullptr) {
#pragma GCC unroll 4
      for (int i = 0; i < R; ++i)
        any |= in.a_falls_back[i * in.a_flag_row + k] >> (in.a_lane + i * in.a_lane_row) & 1u;
    } else {
#pragma GCC unroll 3
      for (int v = 0; v < V; ++v) any |= in.b_falls_back[v * in.b_flag_panel + k];
    }
    return any != 0;
  }

  // R rows by V panels. Second values are rare: what adds them is apart, so that this stays short.
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
    const bool has_second = in.a_second != nullptr || in.b_second != nullptr;
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
      if (has_second && falls_back<R, V>(in, k)) [[unlikely]] {
        __m512 chains[R * V];
#pragma GCC unroll 12
        for (int n = 0; n < R * V; ++n) chains[n] = chain[n / V][n % V];
        add_second<R, V>(in, k, chains);
#pragma GCC unroll 12
        for (int n = 0; n < R * V; ++n) chain[n / V][n % V] = chains[n];
      }
      a += kBlockUnits * in.a_unit;
      b += kInt8Block * kInt8Panel;
      compensation += kInt8Panel;
      a_scales += in.a_scale_block;
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
