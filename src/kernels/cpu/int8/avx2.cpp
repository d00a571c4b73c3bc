// SPDX-License-Identifier: Apache-2.0
#include "kernels/cpu/int8/lines.h"

#if defined(__AVX2__) && defined(__FMA__)
#include "kernels/cpu/int8/tile_256.h"

namespace anabatic::kernels::cpu {
namespace {

// VPMADDWD on int8 values widened to 16 bits; VPMADDUBSW, which takes bytes, saturates. A sum of a
// column lies in two neighbouring lanes, four columns a register.
struct WidenedSums {
  static constexpr Int kRows = 2;

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

  template <int R>
  static inline __attribute__((always_inline)) void block_sums(const Int8Tile& in, Int units,
                                                               const std::int8_t* a,
                                                               const std::int8_t* b,
                                                               const std::int32_t*,
                                                               __m256 (&values)[R][2]) {
    const __m256i bits = _mm256_set1_epi16(in.a_is_unsigned ? 0xFF : -1);
    __m256i sums[R][4];
#pragma GCC unroll 2
    for (int i = 0; i < R; ++i)
#pragma GCC unroll 4
      for (int v = 0; v < 4; ++v) sums[i][v] = _mm256_setzero_si256();
    for (; units > 0; --units) {
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
};

constexpr GemmEngine kInt8Engine = int8_engine<Int8In256<WidenedSums>>("avx2", &avx2::int8_coding);

}  // namespace

const GemmEngine* gemm_int8_avx2() { return &kInt8Engine; }

}  // namespace anabatic::kernels::cpu

#else

namespace anabatic::kernels::cpu {
const GemmEngine* gemm_int8_avx2() { return nullptr; }
}  // namespace anabatic::kernels::cpu

#endif
