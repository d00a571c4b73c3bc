// SPDX-License-Identifier: Apache-2.0
#include "kernels/cpu/gemm.h"

#if defined(__AVX512F__)
#include "kernels/cpu/elementwise/draws.h"
#include "kernels/cpu/gemm_block.h"
#include "kernels/cpu/sparse/two_of_four_tiles.h"
#include "kernels/cpu/words_avx512.h"

namespace anabatic::kernels::cpu {
namespace {

// 24 of 32 registers accumulate.
struct Avx512 {
  using Unit = float;
  using Vector = __m512;
  using Packed = __m512;
  static constexpr Int kLanes = 16, kRows = 8, kVectors = 3, kSquare = 16;
  static constexpr Int kFloatDepth = 256, kPairDepth = 512;
  static constexpr Int kBlockRows = 128, kPackedColumns = 528, kColumns = 240;
  static constexpr Int kGradientRows = 192, kGradientColumns = 528, kGradientDepth = 256;

  static Vector zero() { return _mm512_setzero_ps(); }
  static Packed load(const float* from) { return _mm512_load_ps(from); }
  static Packed load(const Float16* from) {
    return _mm512_cvtph_ps(_mm256_load_si256(reinterpret_cast<const __m256i*>(from)));
  }
  // The first and the second elements of sixteen pairs.
  static Packed low(const std::uint32_t* from) {
    return _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_load_si512(from), 16));
  }
  static Packed high(const std::uint32_t* from) {
    return _mm512_castsi512_ps(_mm512_and_si512(_mm512_load_si512(from),
                                                _mm512_set1_epi32(static_cast<int>(0xFFFF0000u))));
  }
  static Packed broadcast(const float* from) { return _mm512_set1_ps(*from); }
  static Vector multiply_add(Vector sum, Packed a, Packed b) { return _mm512_fmadd_ps(a, b, sum); }
  static Vector load_sums(const float* from) { return _mm512_loadu_ps(from); }
  static void store_sums(float* to, Vector value) { _mm512_storeu_ps(to, value); }

  // Four elements of a row, in each 16 bytes; for each line one of them.
  using Control = __m512i;
  static Packed broadcast_four(const float* from) {
    return _mm512_broadcast_f32x4(_mm_loadu_ps(from));
  }
  static Control load_control(const std::uint32_t* from) { return _mm512_load_si512(from); }
  static Packed pick(Packed four, Control control) { return _mm512_permutevar_ps(four, control); }

  static void stream(float* to, const float* from) { stream_words(to, from); }
  static void end_stream() { _mm_sfence(); }
  static void narrow(std::uint16_t* to, const float* from) { narrow_words(to, from); }
  static void transpose(void* to, const std::byte* from, Int stride) {
    transpose_words(to, from, stride);
  }
};

constexpr GemmEngine kEngine{.isa = "avx512f",
                             .accepts = [](DType, DType) { return true; },
                             .blocking = &GemmBlock<Avx512>::blocking,
                             .sum_terms = &GemmBlock<Avx512>::sum_terms,
                             .workspace_bytes = &GemmBlock<Avx512>::workspace_bytes,
                             .compute = &GemmBlock<Avx512>::compute,
                             .drop = &avx512::drop_columns,
                             .blocks = &BlockSides<Avx512>::kEngine};

}  // namespace

const GemmEngine* gemm_avx512() { return &kEngine; }

}  // namespace anabatic::kernels::cpu

#else

namespace anabatic::kernels::cpu {
const GemmEngine* gemm_avx512() { return nullptr; }
}  // namespace anabatic::kernels::cpu

#endif
