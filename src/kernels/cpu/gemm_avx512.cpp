// SPDX-License-Identifier: Apache-2.0
#include "kernels/cpu/gemm.h"

#if defined(__AVX512F__)
#include "kernels/cpu/gemm_block.h"
#include "kernels/cpu/transpose_avx512.h"

namespace anabatic::kernels::cpu {
namespace {

// 24 of 32 registers accumulate.
struct Avx512 {
  using Unit = float;
  using Vector = __m512;
  using Packed = __m512;
  static constexpr Int kLanes = 16, kRows = 8, kVectors = 3, kPackBytes = 384 << 10;

  static Vector zero() { return _mm512_setzero_ps(); }
  static Packed load(const float* from) { return _mm512_load_ps(from); }
  static Packed broadcast(const float* from) { return _mm512_set1_ps(*from); }
  static Vector multiply_add(Vector sum, Packed a, Packed b) { return _mm512_fmadd_ps(a, b, sum); }
  static void store(float* to, Vector value) { _mm512_store_ps(to, value); }

  static __m512i load_row(const float* from) { return _mm512_loadu_si512(from); }
  static __m512i load_row(const std::uint16_t* from) {
    const __m256i bits = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(from));
    return _mm512_slli_epi32(_mm512_cvtepu16_epi32(bits), 16);
  }

  template <class T>
  static void transpose(float* to, const T* from, Int stride) {
    __m512i rows[16];
#pragma GCC unroll 16
    for (int i = 0; i < 16; ++i) rows[i] = load_row(from + i * stride);
    transpose_16x16(rows);
#pragma GCC unroll 16
    for (int i = 0; i < 16; ++i) _mm512_store_si512(to + i * 16, rows[i]);
  }
};

constexpr GemmEngine kEngine{.isa = "avx512f",
                             .accepts = [](DType, DType) { return true; },
                             .blocking = &GemmBlock<Avx512>::blocking,
                             .workspace_bytes = &GemmBlock<Avx512>::workspace_bytes,
                             .compute = &GemmBlock<Avx512>::compute};

}  // namespace

const GemmEngine* gemm_avx512() { return &kEngine; }

}  // namespace anabatic::kernels::cpu

#else

namespace anabatic::kernels::cpu {
const GemmEngine* gemm_avx512() { return nullptr; }
}  // namespace anabatic::kernels::cpu

#endif
