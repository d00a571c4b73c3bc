// SPDX-License-Identifier: Apache-2.0
// Moves rows of a row-major matrix into the panels of tensor/panels.h. Element types stay: f32 rows
// that become bf16 panels are rounded first, a few at a time. There is one namespace for each
// instruction set, as in vector_math.h.
#pragma once
#include <utility>

#include "kernels/cpu/vector_math.h"
#include "tensor/panels.h"

namespace anabatic::kernels::cpu::ANABATIC_ISA {

template <int kStep, int... kLane>
ANABATIC_INLINE void exchange(Words& a, Words& b, std::integer_sequence<int, kLane...>) {
  const Words first =
      __builtin_shufflevector(a, b, ((kLane & kStep) != 0 ? kLanes + kLane - kStep : kLane)...);
  b = __builtin_shufflevector(a, b, ((kLane & kStep) != 0 ? kLanes + kLane : kLane + kStep)...);
  a = first;
}

// A transpose of kCount x kCount elements of kWidth words, as many as fit side by side:
// off-diagonal blocks change places, small ones first.
template <int kCount = kLanes, int kStep = 1, int kWidth = 1>
ANABATIC_INLINE void transpose(Words* rows) {
  if constexpr (kStep < kCount) {
#pragma GCC unroll 16
    for (int i = 0; i < kCount; ++i)
      if ((i & kStep) == 0)
        exchange<kStep * kWidth>(rows[i], rows[i + kStep],
                                 std::make_integer_sequence<int, kLanes>{});
    transpose<kCount, 2 * kStep, kWidth>(rows);
  }
}

template <class T>
inline constexpr std::int64_t kUnitDepth = sizeof(T) == sizeof(BFloat16) ? 2 : 1;

// Panels are written word by word. kStreamed: past the caches; stream_end() must follow.
template <bool kStreamed>
ANABATIC_INLINE void store_words(void* to, Words words) {
#if ANABATIC_ISA_LANES == 16
  if constexpr (kStreamed) return _mm512_stream_si512(static_cast<__m512i*>(to), (__m512i)words);
#elif ANABATIC_ISA_LANES == 8
  if constexpr (kStreamed) return _mm256_stream_si256(static_cast<__m256i*>(to), (__m256i)words);
#endif
  std::memcpy(to, &words, sizeof words);
}
ANABATIC_INLINE void stream_end() {
#if ANABATIC_ISA_LANES > 4
  _mm_sfence();
#endif
}

// Up to 16 rows of `depth` elements, `stride` apart, to the panel whose columns they are.
template <bool kStreamed = false, class T>
void pack_panel(T* panel, const T* source, std::int64_t stride, std::int64_t rows,
                std::int64_t depth) {
  constexpr std::int64_t kDepth = kUnitDepth<T>, kSquare = kLanes * kDepth;
  std::int64_t k = 0;
  if (rows == kPanelColumns)
    for (; k + kSquare <= depth; k += kSquare)
      for (std::int64_t column = 0; column < kPanelColumns; column += kLanes) {
        Words block[kLanes];
#pragma GCC unroll 16
        for (int i = 0; i < kLanes; ++i)
          std::memcpy(&block[i], source + (column + i) * stride + k, sizeof block[i]);
        transpose(block);
#pragma GCC unroll 16
        for (int i = 0; i < kLanes; ++i)
          store_words<kStreamed>(panel + (k + i * kDepth) * kPanelColumns + column * kDepth,
                                 block[i]);
      }
  if constexpr (kLanes == kPanelColumns && kDepth == 2)  // two rows of 16 elements fill a vector
    if (rows == kPanelColumns)
      for (; k + kPanelColumns <= depth; k += kPanelColumns) {
        constexpr int kHalf = kLanes / 2;
        Words block[kHalf];
#pragma GCC unroll 8
        for (int i = 0; i < kHalf; ++i) {
          std::memcpy(&block[i], source + i * stride + k, sizeof block[i] / 2);
          std::memcpy(reinterpret_cast<std::byte*>(&block[i]) + sizeof block[i] / 2,
                      source + (i + kHalf) * stride + k, sizeof block[i] / 2);
        }
        transpose<kHalf>(block);
#pragma GCC unroll 8
        for (int i = 0; i < kHalf; ++i)
          store_words<kStreamed>(panel + (k + i * kDepth) * kPanelColumns, block[i]);
      }
  for (; k < depth; k += kDepth)
    for (std::int64_t column = 0; column < kPanelColumns; ++column)
      for (std::int64_t e = 0; e < kDepth; ++e)
        panel[k * kPanelColumns + column * kDepth + e] =
            column < rows && k + e < depth ? source[column * stride + k + e] : T{};
}

// kLanes words of a row and the next one.
ANABATIC_INLINE Words unit_words(const float* row, const float*) {
  Words words;
  std::memcpy(&words, row, sizeof words);
  return words;
}
ANABATIC_INLINE Words unit_words(const BFloat16* row, const BFloat16* next) {
  Halves first, second{};
  std::memcpy(&first, row, sizeof first);
  if (next != nullptr) std::memcpy(&second, next, sizeof second);
#if ANABATIC_ISA_LANES == 8  // g++ 12 would widen in two parts
  return reinterpret_cast<Words>(_mm256_or_si256(
      _mm256_cvtepu16_epi32(reinterpret_cast<__m128i>(first)),
      _mm256_slli_epi32(_mm256_cvtepu16_epi32(reinterpret_cast<__m128i>(second)), 16)));
#endif
  return __builtin_convertvector(first, Words) | __builtin_convertvector(second, Words) << 16;
}

// Rows [begin, end) of a matrix, which `source` begins with, to the panels whose depth they are.
// `begin` is a multiple of the unit's depth, and `end` too unless it is the last row. The panels
// begin with the source's first column and hold `columns` of it.
template <bool kStreamed, class T>
void pack_depth(T* panels, std::int64_t panel_elements, std::int64_t columns, const T* source,
                std::int64_t stride, std::int64_t begin, std::int64_t end) {
  constexpr std::int64_t kDepth = kUnitDepth<T>;
  for (std::int64_t k = 0; k < columns; k += kPanelColumns) {
    T* panel = panels + k / kPanelColumns * panel_elements;
    for (std::int64_t n = begin; n < end; n += kDepth) {
      const T* row = source + (n - begin) * stride + k;
      const T* next = n + 1 < end ? row + stride : nullptr;
      T* to = panel + n * kPanelColumns;
      if (k + kPanelColumns <= columns) {
#pragma GCC unroll 4
        for (std::int64_t lane = 0; lane < kPanelColumns; lane += kLanes)
          store_words<kStreamed>(to + lane * kDepth,
                                 unit_words(row + lane, next != nullptr ? next + lane : nullptr));
        continue;
      }
      for (std::int64_t lane = 0; lane < kPanelColumns; ++lane) {
        to[lane * kDepth] = k + lane < columns ? row[lane] : T{};
        if (kDepth == 2)
          to[lane * kDepth + 1] = k + lane < columns && next != nullptr ? next[lane] : T{};
      }
    }
  }
}

// Where an f32 panel's elements go: rows of the depth [begin, end), at `rows` as [row][16], lanes
// beyond the last column zero. Both may be null. `begin` is a multiple of 16; `end` too unless it
// is the depth.
template <class T>
struct PanelTargets {
  T* panel;       // of layout panels: the one of the same columns
  T* transposed;  // of layout panels_transposed: of the matrix
  std::int64_t panel_elements, first_column, columns;  // of `transposed`; `columns` at most 16

  template <bool kStreamed>
  void write(const T* rows, std::int64_t begin, std::int64_t end) const {
    if (panel != nullptr)
      pack_depth<kStreamed>(panel, 0, kPanelColumns, rows, kPanelColumns, begin, end);
    if (transposed == nullptr) return;
    for (std::int64_t k = begin; k < end; k += kPanelColumns)
      pack_panel<kStreamed>(
          transposed + k / kPanelColumns * panel_elements + first_column * kPanelColumns,
          rows + (k - begin) * kPanelColumns, kPanelColumns,
          end - k < kPanelColumns ? end - k : kPanelColumns, columns);
  }
};

// Weights as bf16, half away from zero.
inline void round_weights(BFloat16* to, const float* from, std::int64_t count) {
  std::int64_t i = 0;
  for (; i + kLanes <= count; i += kLanes) store_half_away(to + i, load(from + i), kLanes);
  if (i < count)
    store_half_away(to + i, load(from + i, static_cast<int>(count - i)),
                    static_cast<int>(count - i));
}

}  // namespace anabatic::kernels::cpu::ANABATIC_ISA
