// SPDX-License-Identifier: Apache-2.0
#include "kernels/cpu/gemm.h"

#if defined(__AVX2__) && defined(__FMA__)
#include <immintrin.h>

#include "kernels/cpu/gemm_block.h"

namespace anabatic::kernels::cpu {
namespace {

// Twelve accumulators, two panels and one broadcast fill the sixteen registers.
struct Avx2 {
  using Unit = float;
  using Vector = __m256;
  using Packed = __m256;
  static constexpr Int kLanes = 8, kRows = 6, kVectors = 2, kPackBytes = 192 << 10;

  static Vector zero() { return _mm256_setzero_ps(); }
  static Packed load(const float* from) { return _mm256_load_ps(from); }
  static Packed broadcast(const float* from) { return _mm256_broadcast_ss(from); }
  static Vector multiply_add(Vector sum, Packed a, Packed b) { return _mm256_fmadd_ps(a, b, sum); }
  static void store(float* to, Vector value) { _mm256_store_ps(to, value); }

  static __m256 load_row(const float* from) { return _mm256_loadu_ps(from); }
  static __m256 load_row(const std::uint16_t* from) {
    const __m128i bits = _mm_loadu_si128(reinterpret_cast<const __m128i*>(from));
    return _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_cvtepu16_epi32(bits), 16));
  }

  template <class T>
  static void transpose(float* to, const T* from, Int stride) {
    __m256 r[8], t[8];
    for (int i = 0; i < 8; ++i) r[i] = load_row(from + i * stride);
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
      store(to + i * 8, _mm256_permute2f128_ps(r[i], r[4 + i], 0x20));
      store(to + (4 + i) * 8, _mm256_permute2f128_ps(r[i], r[4 + i], 0x31));
    }
  }
};

constexpr GemmEngine kEngine{.isa = "avx2",
                             .accepts = [](DType, DType) { return true; },
                             .blocking = &GemmBlock<Avx2>::blocking,
                             .workspace_bytes = &GemmBlock<Avx2>::workspace_bytes,
                             .compute = &GemmBlock<Avx2>::compute};

}  // namespace

const GemmEngine* gemm_avx2() { return &kEngine; }

}  // namespace anabatic::kernels::cpu

#else

namespace anabatic::kernels::cpu {
const GemmEngine* gemm_avx2() { return nullptr; }
}  // namespace anabatic::kernels::cpu

#endif
