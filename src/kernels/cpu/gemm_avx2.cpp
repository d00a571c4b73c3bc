// SPDX-License-Identifier: Apache-2.0
#include "kernels/cpu/gemm.h"

#if defined(__AVX2__) && defined(__FMA__)
#include <immintrin.h>

#include "kernels/cpu/elementwise/draws.h"
#include "kernels/cpu/gemm_block.h"
#include "kernels/cpu/sparse/two_of_four_tiles.h"

namespace anabatic::kernels::cpu {
namespace {

// Twelve accumulators, two vectors of B and one broadcast fill the sixteen registers.
struct Avx2 {
  using Unit = float;
  using Vector = __m256;
  using Packed = __m256;
  static constexpr Int kLanes = 8, kRows = 6, kVectors = 2, kSquare = 8;
  static constexpr Int kFloatDepth = 256, kPairDepth = 512;
  static constexpr Int kBlockRows = 96, kPackedColumns = 512, kColumns = 256;
  static constexpr Int kGradientRows = 144, kGradientColumns = 256, kGradientDepth = 256;

  static Vector zero() { return _mm256_setzero_ps(); }
  static Packed load(const float* from) { return _mm256_load_ps(from); }
  static Packed load(const Float16* from) {
    return _mm256_cvtph_ps(_mm_load_si128(reinterpret_cast<const __m128i*>(from)));
  }
  // The first and the second elements of eight pairs.
  static Packed low(const std::uint32_t* from) {
    return _mm256_castsi256_ps(
        _mm256_slli_epi32(_mm256_load_si256(reinterpret_cast<const __m256i*>(from)), 16));
  }
  static Packed high(const std::uint32_t* from) {
    return _mm256_castsi256_ps(
        _mm256_and_si256(_mm256_load_si256(reinterpret_cast<const __m256i*>(from)),
                         _mm256_set1_epi32(static_cast<int>(0xFFFF0000u))));
  }
  static Packed broadcast(const float* from) { return _mm256_broadcast_ss(from); }
  // In assembly, so that every sum keeps its register: g++ moves sums about and spills them.
  static Vector multiply_add(Vector sum, Packed a, Packed b) {
    asm("vfmadd231ps %2, %1, %0" : "+x"(sum) : "x"(a), "x"(b));
    return sum;
  }
  static Vector load_sums(const float* from) { return _mm256_loadu_ps(from); }
  static void store_sums(float* to, Vector value) { _mm256_storeu_ps(to, value); }

  // Four elements of a row, in each 16 bytes; for each line one of them.
  using Control = __m256i;
  static Packed broadcast_four(const float* from) {
    return _mm256_broadcast_ps(reinterpret_cast<const __m128*>(from));
  }
  static Control load_control(const std::uint32_t* from) {
    return _mm256_load_si256(reinterpret_cast<const __m256i*>(from));
  }
  static Packed pick(Packed four, Control control) { return _mm256_permutevar_ps(four, control); }

  static void stream(float* to, const float* from) {
    _mm256_stream_ps(to, _mm256_load_ps(from));
    _mm256_stream_ps(to + 8, _mm256_load_ps(from + 8));
  }
  static void end_stream() { _mm_sfence(); }

  // bf16 bits in the lower 16 bits, as in kernels::cpu::narrow.
  static __m256i bf16(__m256 x) {
    const __m256i bits = _mm256_castps_si256(x), half = _mm256_srli_epi32(bits, 16);
    const __m256i to_even =
        _mm256_add_epi32(_mm256_and_si256(half, _mm256_set1_epi32(1)), _mm256_set1_epi32(0x7FFF));
    const __m256i rounded = _mm256_srli_epi32(_mm256_add_epi32(bits, to_even), 16);
    const __m256i quiet = _mm256_or_si256(half, _mm256_set1_epi32(0x40));
    return _mm256_blendv_epi8(rounded, quiet,
                              _mm256_castps_si256(_mm256_cmp_ps(x, x, _CMP_UNORD_Q)));
  }
  // Sixteen sums to bf16.
  static void narrow(std::uint16_t* to, const float* from) {
    const __m256i low = bf16(_mm256_loadu_ps(from)), high = bf16(_mm256_loadu_ps(from + 8));
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(to),
                        _mm256_permute4x64_epi64(_mm256_packus_epi32(low, high), 0xD8));
  }

  static void transpose(void* to, const std::byte* from, Int stride) {
    auto* words = static_cast<float*>(to);
    for (int half = 0; half < 2; ++half, from += 8 * stride, words += 8) {
      __m256 r[8], t[8];
      for (int i = 0; i < 8; ++i)
        r[i] = _mm256_loadu_ps(reinterpret_cast<const float*>(from + i * stride));
      for (int i = 0; i < 4; ++i) {
        t[2 * i] = _mm256_unpacklo_ps(r[2 * i], r[2 * i + 1]);
        t[2 * i + 1] = _mm256_unpackhi_ps(r[2 * i], r[2 * i + 1]);
      }
      for (int i = 0; i < 2; ++i) {
        r[4 * i] = _mm256_shuffle_ps(t[4 * i], t[4 * i + 2], 0x44);
        r[4 * i + 1] = _mm256_shuffle_ps(t[4 * i], t[4 * i + 2], 0xEE);
        r[4 * i + 2] = _mm256_shuffle_ps(t[4 * i + 1], t[4 * i + 3], 0x44);
        r[4 * i + 3] = _mm256_shuffle_ps(t[4 * i + 1], t[4 * i + 3], 0xEE);
      }
      for (int i = 0; i < 4; ++i) {
        _mm256_storeu_ps(words + i * 16, _mm256_permute2f128_ps(r[i], r[4 + i], 0x20));
        _mm256_storeu_ps(words + (4 + i) * 16, _mm256_permute2f128_ps(r[i], r[4 + i], 0x31));
      }
    }
  }
};

constexpr GemmEngine kEngine{.isa = "avx2",
                             .accepts = [](DType, DType) { return true; },
                             .blocking = &GemmBlock<Avx2>::blocking,
                             .sum_terms = &GemmBlock<Avx2>::sum_terms,
                             .workspace_bytes = &GemmBlock<Avx2>::workspace_bytes,
                             .compute = &GemmBlock<Avx2>::compute,
                             .drop = &avx2::drop_columns,
                             .blocks = &BlockSides<Avx2>::kEngine};

}  // namespace

const GemmEngine* gemm_avx2() { return &kEngine; }

}  // namespace anabatic::kernels::cpu

#else

namespace anabatic::kernels::cpu {
const GemmEngine* gemm_avx2() { return nullptr; }
}  // namespace anabatic::kernels::cpu

#endif
