// SPDX-License-Identifier: Apache-2.0
// Elements of operands to f32 and back, for what packs them. Compiled once an instruction set: see
// gemm_pack.h for what that forbids.
#pragma once
#if defined(__F16C__)
#include <immintrin.h>
#endif

#include "kernels/cpu/gemm.h"
#include "tensor/half.h"

namespace anabatic::kernels::cpu {
namespace {

using Int = std::int64_t;

inline constexpr Int kPanel = 16;

template <class T>
constexpr T smaller(T a, T b) {
  return a < b ? a : b;
}
template <class T>
constexpr T larger(T a, T b) {
  return a < b ? b : a;
}

inline float widen(std::uint16_t bits) {
  return __builtin_bit_cast(float, std::uint32_t{bits} << 16);
}

inline std::uint16_t narrow(float value) {
  const auto bits = __builtin_bit_cast(std::uint32_t, value);
  const std::uint32_t rounded = (bits + 0x7FFFu + ((bits >> 16) & 1u)) >> 16;
  const std::uint32_t quiet = (bits >> 16) | 0x40u;
  return static_cast<std::uint16_t>((bits & 0x7FFFFFFFu) > 0x7F800000u ? quiet : rounded);
}

inline float as_float(float value) { return value; }
inline float as_float(std::uint16_t value) { return widen(value); }
inline float as_float(Float16 value) { return half_to_float(value.bits); }

// f16 to f32 and back, half to even.
inline void convert_halves(float* __restrict to, const Float16* __restrict from,
                           std::int64_t count) {
  std::int64_t i = 0;
#if defined(__F16C__)
  for (; i + 8 <= count; i += 8)
    _mm256_storeu_ps(to + i,
                     _mm256_cvtph_ps(_mm_loadu_si128(reinterpret_cast<const __m128i*>(from + i))));
#endif
  for (; i < count; ++i) to[i] = as_float(from[i]);
}
inline void convert_halves(Float16* __restrict to, const float* __restrict from,
                           std::int64_t count) {
  std::int64_t i = 0;
#if defined(__F16C__)
  for (; i + 8 <= count; i += 8)
    _mm_storeu_si128(reinterpret_cast<__m128i*>(to + i),
                     _mm256_cvtps_ph(_mm256_loadu_ps(from + i), _MM_FROUND_TO_NEAREST_INT));
#endif
  for (; i < count; ++i) to[i].bits = float_to_half(from[i]);
}

}  // namespace
}  // namespace anabatic::kernels::cpu
