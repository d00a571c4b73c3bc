// SPDX-License-Identifier: Apache-2.0
#include "kernels/cpu/int8/lines.h"

#if defined(__AVXVNNI__) && defined(__FMA__)
#include "kernels/cpu/int8/tile_256.h"

namespace anabatic::kernels::cpu {
namespace {

// VPDPBUSD on 256 bits, as avx512_vnni.cpp has it on 512. Sums of 4 rows by 16 columns cover its
// latency (4) times its throughput (2), within 16 registers.
struct DotSums {
  static constexpr Int kRows = 4;

  // g++ 12 copies the sums of the intrinsic through the stack. {vex}: the form without AVX-512.
  static inline __attribute__((always_inline)) __m256i dot(__m256i sum, __m256i a, __m256i b) {
#if defined(_mm256_dpbusd_epi32)
    return _mm256_dpbusd_epi32(sum, a, b);
#else
    asm("%{vex%} vpdpbusd %2, %1, %0" : "+x"(sum) : "x"(a), "x"(b));
    return sum;
#endif
  }

  template <int R>
  static inline __attribute__((always_inline)) void block_sums(const Int8Tile& in, Int units,
                                                               const std::int8_t* a,
                                                               const std::int8_t* b,
                                                               const std::int32_t* compensation,
                                                               __m256 (&values)[R][2]) {
    const __m256i sign = _mm256_set1_epi32(in.a_is_unsigned ? 0 : static_cast<int>(0x80808080u)),
                  compensates = _mm256_set1_epi32(in.a_is_unsigned ? 0 : -1);
    __m256i sums[R][2];
#pragma GCC unroll 2
    for (int v = 0; v < 2; ++v) {
      const __m256i value = _mm256_and_si256(
          compensates, _mm256_load_si256(reinterpret_cast<const __m256i*>(compensation + 8 * v)));
#pragma GCC unroll 4
      for (int i = 0; i < R; ++i) sums[i][v] = value;
    }
    for (; units > 0; --units) {
      const auto* from = reinterpret_cast<const __m256i*>(b);
      const __m256i right[2] = {_mm256_load_si256(from), _mm256_load_si256(from + 1)};
#pragma GCC unroll 4
      for (int i = 0; i < R; ++i) {
        std::int32_t word;
        __builtin_memcpy(&word, a + i * in.a_row, sizeof word);
        const __m256i codes = _mm256_xor_si256(_mm256_set1_epi32(word), sign);
#pragma GCC unroll 2
        for (int v = 0; v < 2; ++v) sums[i][v] = dot(sums[i][v], codes, right[v]);
      }
      a += in.a_unit;
      b += kInt8Panel * kInt8Unit;
    }
#pragma GCC unroll 4
    for (int i = 0; i < R; ++i)
#pragma GCC unroll 2
      for (int v = 0; v < 2; ++v) values[i][v] = _mm256_cvtepi32_ps(sums[i][v]);
  }
};

constexpr GemmEngine kInt8Engine = int8_engine<Int8In256<DotSums>>("avx_vnni", &avx2::int8_coding);

}  // namespace

const GemmEngine* gemm_int8_avx_vnni() { return &kInt8Engine; }

}  // namespace anabatic::kernels::cpu

#else

namespace anabatic::kernels::cpu {
const GemmEngine* gemm_int8_avx_vnni() { return nullptr; }
}  // namespace anabatic::kernels::cpu

#endif
