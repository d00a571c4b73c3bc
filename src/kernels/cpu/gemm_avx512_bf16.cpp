// SPDX-License-Identifier: Apache-2.0
#include "kernels/cpu/gemm.h"

#if defined(__AVX512BF16__)
#include "kernels/cpu/gemm_block.h"
#include "kernels/cpu/sparse/block_tiles.h"
#include "kernels/cpu/words_avx512.h"

namespace anabatic::kernels::cpu {
namespace {

// A unit is a pair of bf16 along the depth; VDPBF16PS adds both products, the odd one first.
struct Avx512Bf16 : PairWords {
  using Unit = std::uint32_t;
  using Vector = __m512;
  using Packed = __m512i;
  static constexpr Int kLanes = 16, kRows = 8, kVectors = 3, kSquare = 16;
  static constexpr Int kFloatDepth = 2, kPairDepth = 1024;
  static constexpr Int kBlockRows = 128, kPackedColumns = 528, kColumns = 240;
  static constexpr Int kGradientRows = 192, kGradientColumns = 528, kGradientDepth = 512;

  static Vector zero() { return _mm512_setzero_ps(); }
  static Packed load(const Unit* from) { return _mm512_load_si512(from); }
  static Packed broadcast(const Unit* from) { return _mm512_set1_epi32(static_cast<int>(*from)); }
  static Vector multiply_add(Vector sum, Packed a, Packed b) {
    return _mm512_dpbf16_ps(sum, (__m512bh)a, (__m512bh)b);
  }
  static Vector load_sums(const float* from) { return _mm512_loadu_ps(from); }
  static void store_sums(float* to, Vector value) { _mm512_storeu_ps(to, value); }
};

constexpr GemmEngine kEngine{
    .isa = "avx512_bf16",
    .accepts = [](DType a, DType b) { return a == DType::kBFloat16 && b == DType::kBFloat16; },
    .blocking = &GemmBlock<Avx512Bf16>::blocking,
    .sum_terms = &GemmBlock<Avx512Bf16>::sum_terms,
    .workspace_bytes = &GemmBlock<Avx512Bf16>::workspace_bytes,
    .compute = &GemmBlock<Avx512Bf16>::compute,
    .blocks = &BlockSides<Avx512Bf16>::kEngine};

}  // namespace

const GemmEngine* gemm_avx512_bf16() { return &kEngine; }

}  // namespace anabatic::kernels::cpu

#else

namespace anabatic::kernels::cpu {
const GemmEngine* gemm_avx512_bf16() { return nullptr; }
}  // namespace anabatic::kernels::cpu

#endif
