// SPDX-License-Identifier: Apache-2.0
// Stands before every other line of a kernel source: the AVX-512 that the kernels use, by SIMDe on
// any x86 with AVX2, the tiles of AMX and AVX-VNNI. GCC lowers the 64-byte vectors of the vector
// sources itself. Own versions where SIMDe is more lenient than the instruction, or gives other
// bits.
#pragma once
#define SIMDE_ENABLE_NATIVE_ALIASES
#include <immintrin.h>
#include <simde/x86/avx512/add.h>
#include <simde/x86/avx512/and.h>
#include <simde/x86/avx512/broadcast.h>
#include <simde/x86/avx512/cast.h>
#include <simde/x86/avx512/cmp.h>
#include <simde/x86/avx512/cmpge.h>
#include <simde/x86/avx512/dpbf16.h>
#include <simde/x86/avx512/extract.h>
#include <simde/x86/avx512/fmadd.h>
#include <simde/x86/avx512/insert.h>
#include <simde/x86/avx512/loadu.h>
#include <simde/x86/avx512/madd.h>
#include <simde/x86/avx512/maddubs.h>
#include <simde/x86/avx512/max.h>
#include <simde/x86/avx512/min.h>
#include <simde/x86/avx512/mov.h>
#include <simde/x86/avx512/mul.h>
#include <simde/x86/avx512/mullo.h>
#include <simde/x86/avx512/or.h>
#include <simde/x86/avx512/permutexvar.h>
#include <simde/x86/avx512/set1.h>
#include <simde/x86/avx512/setr.h>
#include <simde/x86/avx512/setzero.h>
#include <simde/x86/avx512/shuffle.h>
#include <simde/x86/avx512/slli.h>
#include <simde/x86/avx512/sqrt.h>
#include <simde/x86/avx512/srl.h>
#include <simde/x86/avx512/srli.h>
#include <simde/x86/avx512/storeu.h>
#include <simde/x86/avx512/unpackhi.h>
#include <simde/x86/avx512/unpacklo.h>
#include <simde/x86/avx512/xor.h>

#include <cmath>
#include <cstdint>
#include <cstring>

#include "tensor/half.h"

namespace anabatic::emulated {
namespace {

// Faults as the instruction does.
template <class T>
inline T* aligned(T* p) {
  if (reinterpret_cast<std::uintptr_t>(p) % 64 != 0) __builtin_trap();
  return p;
}

// The products of the odd elements first; each is added with one rounding. The instruction takes
// denormals as zero and gives none: so do the threads of a ThreadTeam.
inline __m512 dot_pairs(__m512 sum, __m512bh a, __m512bh b) {
  const auto left = (__m512i)a, right = (__m512i)b;
  const __m512i odd = simde_mm512_set1_epi32(static_cast<int>(0xFFFF0000u));
  sum = simde_mm512_fmadd_ps((__m512)simde_mm512_and_si512(left, odd),
                             (__m512)simde_mm512_and_si512(right, odd), sum);
  return simde_mm512_fmadd_ps((__m512)simde_mm512_slli_epi32(left, 16),
                              (__m512)simde_mm512_slli_epi32(right, 16), sum);
}

// x · 2^floor(n), rounded once: a double holds every such number.
inline __m512 times_power_of_two(__m512 x, __m512 n) {
  for (int i = 0; i < 16; ++i)
    x[i] = static_cast<float>(double{x[i]} * __builtin_exp2(__builtin_floor(double{n[i]})));
  return x;
}

inline __m256i low_halves(__m512i x) {
  std::uint32_t words[16];
  std::uint16_t halves[16];
  __builtin_memcpy(words, &x, sizeof words);
  for (int i = 0; i < 16; ++i) halves[i] = static_cast<std::uint16_t>(words[i]);
  return _mm256_loadu_si256(reinterpret_cast<const __m256i*>(halves));
}

inline __m512d doubles_of_floats(__m256 x) {
  __m512d result;
  for (int i = 0; i < 8; ++i) result[i] = x[i];
  return result;
}

// Unsigned bytes of a by signed bytes of b, four a word.
inline __m512i dot_bytes(__m512i sum, __m512i a, __m512i b) {
  std::uint8_t left[64];
  std::int8_t right[64];
  std::int32_t words[16];
  std::memcpy(left, &a, sizeof left);
  std::memcpy(right, &b, sizeof right);
  std::memcpy(words, &sum, sizeof words);
  for (int i = 0; i < 64; ++i) words[i / 4] += std::int32_t{left[i]} * right[i];
  return simde_mm512_loadu_si512(words);
}

inline __m256i dot_few_bytes(__m256i sum, __m256i a, __m256i b) {
  const auto wide = [](__m256i x) { return simde_mm512_broadcast_i64x4(x); };
  return _mm512_castsi512_si256(dot_bytes(wide(sum), wide(a), wide(b)));
}

inline __m512i words_of_halves(__m256i x) {
  std::uint16_t halves[16];
  std::memcpy(halves, &x, sizeof halves);
  std::uint32_t words[16];
  for (int i = 0; i < 16; ++i) words[i] = halves[i];
  return simde_mm512_loadu_si512(words);
}

// To even; denormals become zero, NaN stays NaN.
inline std::uint16_t to_bf16(float x) {
  std::uint32_t bits;
  std::memcpy(&bits, &x, sizeof bits);
  if (x != x) return static_cast<std::uint16_t>((bits >> 16) | 0x40u);
  if ((bits & 0x7F800000u) == 0) bits &= 0x80000000u;
  return static_cast<std::uint16_t>((bits + 0x7FFFu + ((bits >> 16) & 1u)) >> 16);
}

// To even, and back: subnormals stay whatever the thread does with those of f32.
inline __m512 floats_of_f16(__m256i x) {
  std::uint16_t halves[16];
  std::memcpy(halves, &x, sizeof halves);
  __m512 result;
  for (int i = 0; i < 16; ++i) result[i] = half_to_float(halves[i]);
  return result;
}
inline __m256i f16_of_floats(__m512 x) {
  std::uint16_t halves[16];
  for (int i = 0; i < 16; ++i) halves[i] = float_to_half(x[i]);
  return _mm256_loadu_si256(reinterpret_cast<const __m256i*>(halves));
}

// The second operand stands first.
inline __m512bh two_to_bf16(__m512 high, __m512 low) {
  std::uint16_t both[32];
  for (int i = 0; i < 16; ++i) {
    both[i] = to_bf16(low[i]);
    both[16 + i] = to_bf16(high[i]);
  }
  __m512bh result;
  std::memcpy(&result, both, sizeof both);
  return result;
}

inline __m256bh one_to_bf16(__m512 x) {
  std::uint16_t elements[16];
  for (int i = 0; i < 16; ++i) elements[i] = to_bf16(x[i]);
  __m256bh result;
  std::memcpy(&result, elements, sizeof elements);
  return result;
}

// What the mask leaves out is not read.
inline __m512i load_masked(std::uint32_t mask, const void* p) {
  std::uint16_t elements[32] = {};
  for (int i = 0; i < 32; ++i)
    if (mask >> i & 1u)
      std::memcpy(elements + i, static_cast<const char*>(p) + 2 * i, sizeof elements[i]);
  return simde_mm512_loadu_si512(elements);
}

// The fraction above the next lower whole number.
inline __m512 above_floor(__m512 x) {
  for (int i = 0; i < 16; ++i) x[i] = std::isinf(x[i]) ? 0.0f : x[i] - std::floor(x[i]);
  return x;
}

inline __m512 gather(__m512i at, const float* table) {
  std::int32_t places[16];
  std::memcpy(places, &at, sizeof places);
  __m512 x;
  for (int i = 0; i < 16; ++i) x[i] = table[places[i]];
  return x;
}

template <class Byte>
inline __m512i words_of_bytes(__m128i x) {
  Byte bytes[16];
  std::memcpy(bytes, &x, sizeof bytes);
  std::int32_t words[16];
  for (int i = 0; i < 16; ++i) words[i] = bytes[i];
  return simde_mm512_loadu_si512(words);
}

// From each group of four floats the one that a lane's control names.
inline __m512 picked_of_four(__m512 x, __m512i control) {
  float from[16], picked[16];
  std::int32_t places[16];
  std::memcpy(from, &x, sizeof from);
  std::memcpy(places, &control, sizeof places);
  for (int i = 0; i < 16; ++i) picked[i] = from[i / 4 * 4 + (places[i] & 3)];
  return simde_mm512_loadu_ps(picked);
}

// Bit i: byte i of both has no bit in common.
inline std::uint64_t bytes_without_bits(__m512i a, __m512i b) {
  std::uint8_t bytes[64];
  const __m512i both = simde_mm512_and_si512(a, b);
  std::memcpy(bytes, &both, sizeof bytes);
  std::uint64_t mask = 0;
  for (int i = 0; i < 64; ++i) mask |= std::uint64_t{bytes[i] == 0} << i;
  return mask;
}

inline __m512 floats_of_words(__m512i x) {
  std::int32_t words[16];
  std::memcpy(words, &x, sizeof words);
  __m512 floats;
  for (int i = 0; i < 16; ++i) floats[i] = static_cast<float>(words[i]);
  return floats;
}

inline float largest_lane(__m512 x) {
  float largest = x[0];
  for (int i = 1; i < 16; ++i) largest = x[i] > largest ? x[i] : largest;
  return largest;
}

// AMX: eight registers of up to 16 rows of 64 bytes, as the thread has configured them. Beyond rows
// and bytes of its shape a register is zero.
struct Tiles {
  std::uint8_t rows[8] = {};
  std::uint16_t row_bytes[8] = {};
  float sums[8][16][16] = {};
  std::uint32_t pairs[8][16][16] = {};
};
inline Tiles& tiles() {
  static thread_local Tiles of_thread;
  return of_thread;
}
inline void configure_tiles(const void* config) {
  const auto* bytes = static_cast<const std::uint8_t*>(config);
  if (bytes[0] != 1) __builtin_trap();
  tiles() = Tiles();
  for (int t = 0; t < 8; ++t) {
    std::memcpy(&tiles().row_bytes[t], bytes + 16 + 2 * t, 2);
    tiles().rows[t] = bytes[48 + t];
    if (tiles().rows[t] > 16 || tiles().row_bytes[t] > 64) __builtin_trap();
  }
}
inline int rows_of_tile(int tile) {
  if (tiles().rows[tile] == 0) __builtin_trap();  // not configured
  return tiles().rows[tile];
}
inline void load_tile(int tile, const void* from, std::int64_t stride) {
  for (int r = 0; r < rows_of_tile(tile); ++r)
    std::memcpy(tiles().pairs[tile][r], static_cast<const char*>(from) + r * stride,
                tiles().row_bytes[tile]);
}
inline void store_tile(int tile, void* to, std::int64_t stride) {
  for (int r = 0; r < rows_of_tile(tile); ++r)
    std::memcpy(static_cast<char*>(to) + r * stride, tiles().sums[tile][r],
                tiles().row_bytes[tile]);
}
inline void clear_tile(int tile) {
  (void)rows_of_tile(tile);
  std::memset(tiles().sums[tile], 0, sizeof tiles().sums[tile]);
}
// The even and the odd elements of a row are summed apart, each product added with one rounding.
inline void dot_tiles(int c, int a, int b) {
  const auto high = [](std::uint32_t pair) {
    return __builtin_bit_cast(float, pair & 0xFFFF0000u);
  };
  const auto low = [](std::uint32_t pair) { return __builtin_bit_cast(float, pair << 16); };
  if (rows_of_tile(b) != tiles().row_bytes[a] / 4 || rows_of_tile(c) != rows_of_tile(a))
    __builtin_trap();
  for (int r = 0; r < rows_of_tile(a); ++r) {
    float even[16] = {}, odd[16] = {};
    for (int k = 0; k < rows_of_tile(b); ++k)
      for (int n = 0; n < 16; ++n) {
        const std::uint32_t left = tiles().pairs[a][r][k], right = tiles().pairs[b][k][n];
        even[n] = __builtin_fmaf(low(left), low(right), even[n]);
        odd[n] = __builtin_fmaf(high(left), high(right), odd[n]);
      }
    for (int n = 0; n < 16; ++n) tiles().sums[c][r][n] += even[n] + odd[n];
  }
}

}  // namespace
}  // namespace anabatic::emulated

#define _tile_dpbf16ps(c, a, b) anabatic::emulated::dot_tiles(c, a, b)
#define _tile_loadconfig(config) anabatic::emulated::configure_tiles(config)
#define _tile_loadd(tile, from, stride) anabatic::emulated::load_tile(tile, from, stride)
#define _tile_release() (anabatic::emulated::tiles() = anabatic::emulated::Tiles())
#define _tile_stored(tile, to, stride) anabatic::emulated::store_tile(tile, to, stride)
#define _tile_zero(tile) anabatic::emulated::clear_tile(tile)

#undef _mm256_dpbusd_epi32
#undef _mm512_cvtepi32_epi16
#undef _mm512_cvtepi32_ps
#undef _mm512_cvtepi8_epi32
#undef _mm512_cvtepu16_epi32
#undef _mm512_cvtph_ps
#undef _mm512_cvtps_ph
#undef _mm512_cvtepu8_epi32
#undef _mm512_cvtne2ps_pbh
#undef _mm512_cvtneps_pbh
#undef _mm512_dpbf16_ps
#undef _mm512_dpbusd_epi32
#undef _mm512_i32gather_ps
#undef _mm512_load_ps
#undef _mm512_load_si512
#undef _mm512_madd_epi16
#undef _mm512_maskz_loadu_epi16
#undef _mm512_maskz_scalef_ps
#undef _mm512_permutevar_ps
#undef _mm512_reduce_max_ps
#undef _mm512_reduce_ps
#undef _mm512_scalef_ps
#undef _mm512_store_si512
#undef _mm512_stream_si512
#undef _mm512_testn_epi8_mask
#define _mm256_dpbusd_epi32(sum, a, b) anabatic::emulated::dot_few_bytes(sum, a, b)
#define _mm512_cvtepi32_epi16(x) anabatic::emulated::low_halves(x)
#define _mm512_cvtepi32_ps(x) anabatic::emulated::floats_of_words(x)
#define _mm512_cvtepi8_epi32(x) anabatic::emulated::words_of_bytes<std::int8_t>(x)
#define _mm512_cvtepu16_epi32(x) anabatic::emulated::words_of_halves(x)
#define _mm512_cvtps_pd(x) anabatic::emulated::doubles_of_floats(x)
#define _mm512_cvtph_ps(x) anabatic::emulated::floats_of_f16(x)
#define _mm512_cvtps_ph(x, rounding) anabatic::emulated::f16_of_floats(x)
#define _mm512_cvtepu8_epi32(x) anabatic::emulated::words_of_bytes<std::uint8_t>(x)
#define _mm512_cvtne2ps_pbh(high, low) anabatic::emulated::two_to_bf16(high, low)
#define _mm512_cvtneps_pbh(x) anabatic::emulated::one_to_bf16(x)
#define _mm512_dpbf16_ps(sum, a, b) anabatic::emulated::dot_pairs(sum, a, b)
#define _mm512_dpbusd_epi32(sum, a, b) anabatic::emulated::dot_bytes(sum, a, b)
#define _mm512_i32gather_ps(at, table, scale) anabatic::emulated::gather(at, table)
#define _mm512_load_ps(p) simde_mm512_loadu_ps(anabatic::emulated::aligned(p))
#define _mm512_load_si512(p) simde_mm512_loadu_si512(anabatic::emulated::aligned(p))
#define _mm512_madd_epi16(a, b) simde_mm512_madd_epi16(a, b)  // the alias takes four
#define _mm512_maskz_loadu_epi16(mask, p) anabatic::emulated::load_masked(mask, p)
#define _mm512_maskz_scalef_ps(mask, x, n) \
  simde_mm512_maskz_mov_ps(mask, anabatic::emulated::times_power_of_two(x, n))
#define _mm512_permutevar_ps(x, control) anabatic::emulated::picked_of_four(x, control)
#define _mm512_reduce_max_ps(x) anabatic::emulated::largest_lane(x)
#define _mm512_reduce_ps(x, floor) anabatic::emulated::above_floor(x)
#define _mm512_scalef_ps(x, n) anabatic::emulated::times_power_of_two(x, n)
#define _mm512_store_si512(p, x) simde_mm512_storeu_si512(anabatic::emulated::aligned(p), x)
#define _mm512_stream_si512(p, x) simde_mm512_storeu_si512(anabatic::emulated::aligned(p), x)
#define _mm512_testn_epi8_mask(a, b) anabatic::emulated::bytes_without_bits(a, b)
