// SPDX-License-Identifier: Apache-2.0
// Sums of squares of a tile's sums, in double, where every product of floats is exact. In one order
// for all instruction sets. Compiled once an instruction set: see gemm_pack.h for what that
// forbids.
#pragma once
#if defined(__AVX512F__)
#include <immintrin.h>
#endif

#include "kernels/cpu/gemm_pack.h"

namespace anabatic::kernels::cpu {
namespace {

// As many doubles as a register holds, and their floats. No template's: g++ 12 converts no
// dependent vectors.
#if defined(__AVX512F__)
inline constexpr int kFew = 8;
#elif defined(__AVX__)
inline constexpr int kFew = 4;
#else
inline constexpr int kFew = 2;
#endif
using FewFloats = float __attribute__((vector_size(4 * kFew)));
using Doubles = double __attribute__((vector_size(8 * kFew)));
inline Doubles widen(FewFloats x) {
#if defined(__AVX512F__)  // g++ 12 does it in two steps
  return reinterpret_cast<Doubles>(_mm512_cvtps_pd(reinterpret_cast<__m256>(x)));
#else
  return __builtin_convertvector(x, Doubles);
#endif
}

// One sum for each of sixteen columns, and at the end all of them.
class SquareSums {
 public:
  // `count` floats, at most sixteen.
  inline __attribute__((always_inline)) void add(const float* row, Int count) {
    float padded[kPanel];
    if (count < kPanel) {
      for (Int n = 0; n < kPanel; ++n) padded[n] = n < count ? row[n] : 0.0f;
      row = padded;
    }
#pragma GCC unroll 8
    for (int part = 0; part < kParts; ++part) {
      FewFloats few;
      __builtin_memcpy(&few, row + part * kFew, sizeof few);
      const Doubles wide = widen(few);
      sums_[part] += wide * wide;
    }
  }

  inline __attribute__((always_inline)) double total() const {
    double lanes[kPanel];
    __builtin_memcpy(lanes, sums_, sizeof lanes);
#pragma GCC unroll 4
    for (int half = kPanel / 2; half > 0; half /= 2)
#pragma GCC unroll 8
      for (int n = 0; n < half; ++n) lanes[n] += lanes[n + half];
    return lanes[0];
  }

 private:
  static constexpr int kParts = kPanel / kFew;
  Doubles sums_[kParts] = {};
};

}  // namespace
}  // namespace anabatic::kernels::cpu
