// SPDX-License-Identifier: Apache-2.0
#include "kernels/cpu/gemm.h"

#if defined(__AVX512BF16__)
#include "kernels/cpu/elementwise/draws.h"
#include "kernels/cpu/gemm_block.h"
#include "kernels/cpu/sparse/two_of_four_tiles.h"
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

  // Four elements of a row, in each 8 bytes; for each line the bytes of two of them.
  using Control = __m512i;
  static Packed broadcast_four(const Unit* from) {
    long long four;
    __builtin_memcpy(&four, from, sizeof four);
    return _mm512_set1_epi64(four);
  }
  static Control load_control(const std::uint32_t* from) { return _mm512_load_si512(from); }
  static Packed pick(Packed four, Control control) { return _mm512_shuffle_epi8(four, control); }
  // The controls of sixteen lines, by four bits of a byte each. The odd element of a pair is the
  // one that a dense product adds first.
  static void controls_of_pairs(std::uint32_t* to, const std::uint8_t* places, int shift) {
    constexpr auto of = [](int low, int high) {
      return static_cast<int>(0x01000100u + 0x0202u * static_cast<unsigned>(low) +
                              (0x0202u * static_cast<unsigned>(high) << 16));
    };
    const __m512i table = _mm512_setr_epi32(
        0, of(0, 1), of(2, 0), of(3, 0), of(0, 1), 0, of(2, 1), of(3, 1), of(2, 0), of(2, 1), 0,
        of(2, 3), of(3, 0), of(3, 1), of(2, 3), 0);  // at first + 4 second, or the other way round
    const __m512i bytes =
        _mm512_cvtepu8_epi32(_mm_loadu_si128(reinterpret_cast<const __m128i*>(places)));
    const __m512i at = _mm512_srl_epi32(bytes, _mm_cvtsi32_si128(shift));
    _mm512_store_si512(to, _mm512_permutexvar_epi32(at, table));
  }
};

constexpr GemmEngine kEngine{
    .isa = "avx512_bf16",
    .accepts = [](DType a, DType b) { return a == DType::kBFloat16 && b == DType::kBFloat16; },
    .blocking = &GemmBlock<Avx512Bf16>::blocking,
    .sum_terms = &GemmBlock<Avx512Bf16>::sum_terms,
    .workspace_bytes = &GemmBlock<Avx512Bf16>::workspace_bytes,
    .compute = &GemmBlock<Avx512Bf16>::compute,
    .drop = &avx512::drop_columns,
    .blocks = &BlockSides<Avx512Bf16>::kEngine};

}  // namespace

const GemmEngine* gemm_avx512_bf16() { return &kEngine; }

}  // namespace anabatic::kernels::cpu

#else

namespace anabatic::kernels::cpu {
const GemmEngine* gemm_avx512_bf16() { return nullptr; }
}  // namespace anabatic::kernels::cpu

#endif
