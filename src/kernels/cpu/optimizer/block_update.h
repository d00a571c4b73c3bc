// SPDX-License-Identifier: Apache-2.0
// The update with moments in 8 bits (tensor/dynamic_map.h), a tile at a time through f32. One
// namespace an instruction set, as vector_math.h has it.
#pragma once
#include <algorithm>
#include <cstring>

#include "base/rounding.h"
#include "kernels/cpu/optimizer/update.h"
#include "tensor/dynamic_map.h"

namespace anabatic::kernels::cpu::ANABATIC_ISA {

namespace tiles {

using Bytes = std::uint8_t __attribute__((vector_size(kLanes)));

ANABATIC_INLINE Ints load_codes(const std::uint8_t* p, int count) {
  Bytes x{};
  if (count == kLanes)
    std::memcpy(&x, p, sizeof x);
  else
    for (int i = 0; i < count; ++i) x[i] = p[i];
#if ANABATIC_ISA_LANES == 8  // g++ 12 would widen in two steps
  std::int64_t bits;
  std::memcpy(&bits, &x, sizeof bits);
  return reinterpret_cast<Ints>(_mm256_cvtepu8_epi32(_mm_cvtsi64_si128(bits)));
#else
  return __builtin_convertvector(x, Ints);
#endif
}
// The lowest byte of each.
ANABATIC_INLINE void store_codes(std::uint8_t* p, Ints x, int count) {
  x &= 0xFF;
#if ANABATIC_ISA_LANES == 8
  const __m256i packed = _mm256_packus_epi32(reinterpret_cast<__m256i>(x), _mm256_setzero_si256());
  const __m128i words = _mm256_castsi256_si128(_mm256_permute4x64_epi64(packed, 0x08));
  const std::int64_t bits = _mm_cvtsi128_si64(_mm_packus_epi16(words, words));
  Bytes bytes;
  std::memcpy(&bytes, &bits, sizeof bytes);
#else
  const Bytes bytes = __builtin_convertvector(x, Bytes);
#endif
  if (count == kLanes)
    std::memcpy(p, &bytes, sizeof bytes);
  else
    for (int i = 0; i < count; ++i) p[i] = bytes[i];
}

#if ANABATIC_ISA_LANES == 8
// The lowest bytes of two rows of 16.
ANABATIC_INLINE void store_two_rows(std::uint8_t* p, std::int64_t stride, Ints a, Ints b, Ints c,
                                    Ints d) {
  const auto words = [](Ints low, Ints high) {
    return _mm256_packus_epi32(reinterpret_cast<__m256i>(low & 0xFF),
                               reinterpret_cast<__m256i>(high & 0xFF));
  };
  const __m256i bytes = _mm256_permutevar8x32_epi32(_mm256_packus_epi16(words(a, b), words(c, d)),
                                                    _mm256_setr_epi32(0, 4, 1, 5, 2, 6, 3, 7));
  _mm_storeu_si128(reinterpret_cast<__m128i*>(p), _mm256_castsi256_si128(bytes));
  _mm_storeu_si128(reinterpret_cast<__m128i*>(p + stride), _mm256_extracti128_si256(bytes, 1));
}
#endif

// Of 256 floats.
ANABATIC_INLINE Floats gather(const float* table, Ints at) {
#if ANABATIC_ISA_LANES == 16
  return _mm512_i32gather_ps(reinterpret_cast<__m512i>(at), table, 4);
#elif ANABATIC_ISA_LANES == 8
  return _mm256_i32gather_ps(table, reinterpret_cast<__m256i>(at), 4);
#else
  Floats x;
  for (int i = 0; i < kLanes; ++i) x[i] = table[at[i]];
  return x;
#endif
}
// Of 8 floats, in registers.
ANABATIC_INLINE Floats look_up(const float* table, Ints at) {
#if ANABATIC_ISA_LANES == 4
  return __builtin_shuffle(load(table), load(table + 4), at);
#else
  return __builtin_shuffle(load(table), at);
#endif
}

ANABATIC_INLINE Floats magnitude(Floats x) {
  return reinterpret_cast<Floats>(reinterpret_cast<Ints>(x) & 0x7FFFFFFF);
}

// quantize() of each lane.
template <bool kSigned>
ANABATIC_INLINE Ints quantize(const DynamicMap& map, Floats x, float inverse) {
  const Floats largest = broadcast(1.0f);
  Floats y = magnitude(x) * inverse;
  y = y <= largest ? y : largest;
  // The bits of a float are nearly its logarithm: half a decade less has reached as many
  // thresholds, or one too few.
  const Floats log10 = __builtin_convertvector(reinterpret_cast<Ints>(y), Floats) *
                           (0.30103f / static_cast<float>(1 << 23)) +
                       (7.5f - 127 * 0.30103f);
  const Ints estimate = __builtin_convertvector(max(log10, Floats{}), Ints);
  const Ints reached = estimate - (y >= look_up(map.next.data(), estimate));
  const Floats place =
      (y - look_up(map.origins.data(), reached)) * look_up(map.rates.data(), reached);
  const Ints power = (Ints{} + 1) << reached;
  const Ints first = kSigned ? power >> 1 : power - 1, last = kSigned ? power - 1 : 2 * power - 2;
  Ints code = first + __builtin_convertvector(place, Ints);
  code = code < last ? code : last;
  const Ints is_one = y >= map.thresholds[7];
  if constexpr (!kSigned) return (is_one ? Ints{} + 255 : code) & (magnitude(x) >= 0x1.0p-126f);
  const Ints is_negative = reinterpret_cast<Ints>(x) >> 31;
  code = (is_one & ~is_negative) != 0 ? Ints{} + 128 : code;
  return (code ^ is_negative) - is_negative;
}

// 8-bit moments of a tile of 16 by 16. Rows lie `stride` values apart.
struct Tile {
  std::uint8_t* codes;
  float* scale;
  std::int64_t stride, rows, columns;
};

inline constexpr std::int64_t kElements = kBlockSide * kBlockSide;

// Zero beyond the columns.
ANABATIC_INLINE void widen(const DynamicMap& map, const Tile& tile, float* values) {
  const float scale = *tile.scale;
  for (std::int64_t row = 0; row < tile.rows; ++row)
#pragma GCC unroll 4
    for (int i = 0; i < kBlockSide; i += kLanes) {
      const int count = static_cast<int>(std::clamp<std::int64_t>(tile.columns - i, 0, kLanes));
      store(
          values + row * kBlockSide + i,
          gather(map.values.data(), load_codes(tile.codes + row * tile.stride + i, count)) * scale);
    }
}

template <bool kSigned>
ANABATIC_INLINE void narrow(const DynamicMap& map, const Tile& tile, const float* values) {
  Floats most{};
  for (std::int64_t i = 0; i < tile.rows * kBlockSide; i += kLanes)
    most = max(magnitude(load(values + i)), most);
  const float scale = max_lanes(most), inverse = inverse_scale(scale);
  *tile.scale = scale < 0x1.0p-126f ? 0.0f : scale;
  const auto codes_at = [&](std::int64_t row, int i) {
    return quantize<kSigned>(map, load(values + row * kBlockSide + i), inverse);
  };
  std::int64_t row = 0;
#if ANABATIC_ISA_LANES == 8
  for (; tile.columns == kBlockSide && row + 2 <= tile.rows; row += 2)
    store_two_rows(tile.codes + row * tile.stride, tile.stride, codes_at(row, 0), codes_at(row, 8),
                   codes_at(row + 1, 0), codes_at(row + 1, 8));
#endif
  for (; row < tile.rows; ++row)
    for (int i = 0; i < kBlockSide; i += kLanes) {
      const int count = static_cast<int>(std::clamp<std::int64_t>(tile.columns - i, 0, kLanes));
      store_codes(tile.codes + row * tile.stride + i, codes_at(row, i), count);
    }
}

}  // namespace tiles

// The update with moments in 8 bits (tensor/dynamic_map.h): a tile is widened to f32, updated as
// any other, and rounded with the scale of what it holds now. In panels `begin` is a multiple
// of 16.
template <class Rule, bool kSplit>
struct BlockUpdate {
  using Wide = Update<Rule, kSplit, false>;
  using Weight = typename Wide::Weight;
  static constexpr std::size_t kFirstMoment = Wide::kFirstMoment;
  static constexpr bool kHalfMoments = false, kBlocks = true;

  Wide wide;
  std::uint8_t* codes[2];
  float* scales[2];
  const DynamicMap& map1 = signed_map();
  const DynamicMap& map2 = unsigned_map();

  BlockUpdate(const Arguments& args, bool has_bits_of_mask) : wide(args, has_bits_of_mask) {
    for (std::size_t i = 0; i < 2; ++i) {
      codes[i] = args.outputs[kFirstMoment + i].template as<std::uint8_t>();
      scales[i] = args.outputs[kFirstMoment + i].template scales<float>();
    }
  }

  // Columns [column, column + count) of a band, `column` a multiple of 16.
  void run(const Band& band, std::int64_t column, std::int64_t count, BFloat16* copy,
           std::int64_t stride) const {
    const std::int64_t across = ceil_div(band.width, kBlockSide);
    for (std::int64_t i = 0; i < count; i += kBlockSide) {
      const std::int64_t first = band.first + column + i, columns = std::min(kBlockSide, count - i);
      const tiles::Tile tile{.codes = nullptr,
                             .scale = nullptr,
                             .stride = band.width,
                             .rows = band.rows,
                             .columns = columns};
      update(tile, first, band.index * across + (column + i) / kBlockSide, [&](const Wide& in_f32) {
        for (std::int64_t row = 0; row < band.rows; ++row) {
          const std::int64_t at = first + row * band.width;
          in_f32.run(at, at + columns, copy == nullptr ? nullptr : copy + row * stride + i,
                     at - row * kBlockSide);
        }
      });
    }
  }

  void run(const Panel& panel, std::int64_t begin, std::int64_t end, BFloat16* copy) const {
    const std::int64_t across = ceil_div(panel.depth, kBlockSide);
    for (std::int64_t k = begin; k < end; k += kBlockSide) {
      const tiles::Tile tile{.codes = nullptr,
                             .scale = nullptr,
                             .stride = kBlockSide,
                             .rows = std::min(kBlockSide, end - k),
                             .columns = kBlockSide};
      Panel place = panel;
      place.moments = -k * kBlockSide;
      update(tile, panel.wide + k * kBlockSide, panel.index * across + k / kBlockSide,
             [&](const Wide& in_f32) {
               in_f32.run(place, k, k + tile.rows,
                          copy == nullptr ? nullptr : copy + (k - begin) * kPanelColumns);
             });
    }
  }

 private:
  // Calls body with an update whose moments are those of the tile at that code and scale, in f32.
  template <class Body>
  ANABATIC_INLINE void update(tiles::Tile tile, std::int64_t code, std::int64_t scale,
                              Body&& body) const {
    alignas(64) float values[2][tiles::kElements];
    tiles::Tile both[2] = {tile, tile};
    for (std::size_t i = 0; i < 2; ++i) {
      both[i].codes = codes[i] + code;
      both[i].scale = scales[i] + scale;
    }
    tiles::widen(map1, both[0], values[0]);
    tiles::widen(map2, both[1], values[1]);
    Wide in_f32 = wide;
    in_f32.moments[0] = values[0];
    in_f32.moments[1] = values[1];
    body(in_f32);
    if (!wide.finite) return;
    tiles::narrow<true>(map1, both[0], values[0]);
    tiles::narrow<false>(map2, both[1], values[1]);
  }
};

static_assert(kBlockSide == kPanelColumns && kBlockSide % kLanes == 0);

}  // namespace anabatic::kernels::cpu::ANABATIC_ISA
