// SPDX-License-Identifier: Apache-2.0
// Packed operands and a register tile of products for attention in fp32.
//
// Panels: columns [16 p, 16 p + 16) of all rows side by side, [columns / 16, rows, 16] (for 8
// lanes; a panel is two vectors wide). They serve as the right operand, and as the left one row by
// row. Panels across: the same of the transposed matrix, [rows / 16, columns, 16].
#pragma once
#include "base/rounding.h"
#include "kernels/cpu/attention/attention_buffers.h"
#include "kernels/cpu/attention/attention_rows.h"

namespace anabatic::kernels::cpu::ANABATIC_ISA {

// 6 x 2 sums, two vectors on the right and one on the left fill 16 registers.
inline constexpr int kVectors = 2, kPanel = kVectors * kLanes;
static_assert(kWidestPanel % kPanel == 0);

using Sums = Floats[kRows][kVectors];

template <class Body>
void with_operand_type(DType dtype, Body&& body) {
  with_float_type(dtype, body);
}

constexpr std::int64_t padded(std::int64_t width) { return round_up(width, kPanel); }

// Exchanges the two off-diagonal kStep x kStep blocks of every 2·kStep x 2·kStep block, then
// continues with the next power of two.
template <int kStep>
ANABATIC_INLINE void transpose_lanes(Floats (&r)[kLanes]) {
  Ints first, second;
  for (int lane = 0; lane < kLanes; ++lane) {
    first[lane] = lane & kStep ? lane - kStep + kLanes : lane;
    second[lane] = lane & kStep ? lane + kLanes : lane + kStep;
  }
#pragma GCC unroll 16
  for (int i = 0; i < kLanes; ++i) {
    if (i & kStep) continue;
    const Floats a = r[i], b = r[i + kStep];
    r[i] = __builtin_shuffle(a, b, first);
    r[i + kStep] = __builtin_shuffle(a, b, second);
  }
  if constexpr (2 * kStep < kLanes) transpose_lanes<2 * kStep>(r);
}

// What a row of `count` more elements has of a vector; zeros beyond.
template <class T>
ANABATIC_INLINE Floats load_part(const T* from, std::int64_t count) {
  if (count >= kLanes) return load(from);
  return count > 0 ? load(from, static_cast<int>(count)) : Floats{};
}

// Panels of factor · rows [first, first + count), from `first_row` of them on. `to` has `rows`
// rows; those from `count` up to a whole register tile become zero, and so do columns beyond the
// head.
template <class T>
void pack(const HeadRows<const T>& from, std::int64_t first, std::int64_t count, float factor,
          std::int64_t rows, float* to, std::int64_t first_row = 0) {
  for (std::int64_t i = 0; i < std::min(round_up(count, kRows), rows - first_row); ++i) {
    const T* row = from.row(first + i);
    float* panel = to + (first_row + i) * kPanel;
    for (std::int64_t left = i < count ? from.width : 0, j = 0; j < from.width;
         left -= kPanel, j += kPanel, panel += rows * kPanel) {
      __builtin_prefetch(row + kPrefetchRows * from.stride + j);
      store(panel, factor * load_part(row + j, left));
      store(panel + kLanes, factor * load_part(row + j + kLanes, left - kLanes));
    }
  }
}

// Panels across of rows [first, first + count), whole panels: what lies beyond is zero.
template <class T>
void pack_across(const HeadRows<const T>& from, std::int64_t first, std::int64_t count, float* to) {
  const std::int64_t width = padded(from.width);
  for (std::int64_t i = 0; i < padded(count); i += kLanes)
    for (std::int64_t j = 0; j < width; j += kLanes) {
      const std::int64_t rows = count - i, columns = std::min<std::int64_t>(from.width - j, kLanes);
      const T* at = from.row(first + i) + j;
      for (int k = 0; k < kLanes; ++k) __builtin_prefetch(at + (kLanes + k) * from.stride);
      Floats r[kLanes];
      if (rows >= kLanes && columns == kLanes) {
#pragma GCC unroll 16
        for (int k = 0; k < kLanes; ++k) r[k] = load(at + k * from.stride);
      } else {
#pragma GCC unroll 16
        for (int k = 0; k < kLanes; ++k)
          r[k] = load_part(at + k * from.stride, k < rows ? columns : 0);
      }
      transpose_lanes<1>(r);
      float* panel = to + i / kPanel * kPanel * width + i % kPanel;
#pragma GCC unroll 16
      for (int k = 0; k < kLanes; ++k) store(panel + (j + k) * kPanel, r[k]);
    }
}

// to[t] := factor · row `row` of panels.
template <class T>
void unpack_row(const float* panels, std::int64_t rows, std::int64_t row, float factor,
                const HeadRows<T>& to, std::int64_t t) {
  const float* panel = panels + row * kPanel;
  for (std::int64_t j = 0; j < to.width; j += kPanel, panel += rows * kPanel) {
    __builtin_prefetch(to.row(t + kPrefetchRows) + j, 1);
    for_lanes(0, std::min<std::int64_t>(to.width - j, kPanel), [&](std::int64_t i, int n) {
      store(to.row(t) + j + i, factor * load(panel + i), n);
    });
  }
}

ANABATIC_INLINE void fill(Sums& sums, const float* of_rows) {
#pragma GCC unroll 6
  for (int i = 0; i < kRows; ++i)
#pragma GCC unroll 2
    for (int v = 0; v < kVectors; ++v) sums[i][v] = broadcast(of_rows[i]);
}

// sums += A · B over kCount rows of the panel B: A[i, k] at a[i · kRow + k · kDepth].
template <int kRow, int kDepth, int kCount>
ANABATIC_INLINE void multiply_add(Sums& sums, const float* a, const float* b) {
#pragma GCC unroll 32
  for (int k = 0; k < kCount; ++k) {
    const Floats right[kVectors] = {load(b + k * kPanel), load(b + k * kPanel + kLanes)};
#pragma GCC unroll 6
    for (int i = 0; i < kRows; ++i) {
      const Floats left = broadcast(a[i * kRow + k * kDepth]);
#pragma GCC unroll 2
      for (int v = 0; v < kVectors; ++v) sums[i][v] = madd(left, right[v], sums[i][v]);
    }
  }
}

// The same over `depth` rows. Few iterations: the branch at the end is predicted.
template <int kRow, int kDepth>
ANABATIC_INLINE void multiply_add(Sums& sums, const float* a, const float* b, std::int64_t depth) {
  constexpr int kStep = 8;
  for (; depth >= kStep; depth -= kStep, a += kStep * kDepth, b += kStep * kPanel)
    multiply_add<kRow, kDepth, kStep>(sums, a, b);
  for (; depth > 0; --depth, a += kDepth, b += kPanel) multiply_add<kRow, kDepth, 1>(sums, a, b);
}

// The same with A from panels of `rows` rows, over `width` > 0 columns of it.
ANABATIC_INLINE void multiply_add_columns(Sums& sums, const float* a, std::int64_t rows,
                                          const float* b, std::int64_t width) {
  do {
    multiply_add<kPanel, 1, kPanel>(sums, a, b);
    a += rows * kPanel;
    b += kPanel * kPanel;
    width -= kPanel;
  } while (width > 0);
}

// What lies beyond the first kMostSumTerms columns, in blocks of so many.
__attribute__((noinline, cold)) inline void add_more_columns(Sums& sums, const float* a,
                                                             std::int64_t rows, const float* b,
                                                             std::int64_t width) {
  static_assert(kMostSumTerms % kPanel == 0);
  for (std::int64_t k = kMostSumTerms; k < width; k += kMostSumTerms) {
    Sums block = {};
    multiply_add_columns(block, a + k * rows, rows, b + k * kPanel,
                         std::min(width - k, kMostSumTerms));
    for (int i = 0; i < kRows; ++i)
      for (int v = 0; v < kVectors; ++v) sums[i][v] += block[i][v];
  }
}

// sums += A · B over all columns. No head is usually so wide that there are more of them.
ANABATIC_INLINE void multiply_add_panels(Sums& sums, const float* a, std::int64_t rows,
                                         const float* b, std::int64_t width) {
  multiply_add_columns(sums, a, rows, b, std::min(width, kMostSumTerms));
  if (width <= kMostSumTerms) return;
  Sums all;  // a copy: a value with an address is not kept in a register
  std::memcpy(&all, &sums, sizeof all);
  add_more_columns(all, a, rows, b, width);
  std::memcpy(&sums, &all, sizeof all);
}

// C[kRows, kPanel] = A · B, or += : the product is summed from zero over runs of the depth, and
// added once.
template <int kRow, int kDepth, bool kAdd>
void multiply(const float* a, const float* b, const DepthRun* runs, int num_runs, float* c) {
  Sums sums = {};
  for (int r = 0; r < num_runs; ++r)
    multiply_add<kRow, kDepth>(sums, a + runs[r].begin * kDepth, b + runs[r].begin * kPanel,
                               runs[r].end - runs[r].begin);
#pragma GCC unroll 6
  for (int i = 0; i < kRows; ++i)
#pragma GCC unroll 2
    for (int v = 0; v < kVectors; ++v) {
      float* at = c + i * kPanel + v * kLanes;
      store(at, kAdd ? load(at) + sums[i][v] : sums[i][v]);
    }
}

// 2^x with a relative error below 2e-7: a minimax polynomial around the nearest whole number, 1 for
// x = 0. x is held within [-125, 126]; NaN stays NaN. Several vectors go step by step side by side:
// one after the other, their long chains would fill the core's scheduler.
template <int kCount>
ANABATIC_INLINE void exp2(Floats (&x)[kCount]) {
  constexpr float kCoefficients[] = {9.67151299e-3f, 5.55073358e-2f, 2.40222424e-1f, 6.93147004e-1f,
                                     1.0f};
  Floats shifted[kCount], p[kCount];
#pragma GCC unroll 4
  for (int i = 0; i < kCount; ++i) x[i] = clamp(x[i], -125.0f, 126.0f);
    // Adding 1.5 · 2^23 leaves no bits of the fraction, and the whole number in the lowest bits.
#pragma GCC unroll 4
  for (int i = 0; i < kCount; ++i) shifted[i] = x[i] + 12582912.0f;
#pragma GCC unroll 4
  for (int i = 0; i < kCount; ++i) x[i] = x[i] - (shifted[i] - 12582912.0f);
#pragma GCC unroll 4
  for (int i = 0; i < kCount; ++i) p[i] = broadcast(1.32647273e-3f);
#pragma GCC unroll 5
  for (const float coefficient : kCoefficients)
#pragma GCC unroll 4
    for (int i = 0; i < kCount; ++i) p[i] = madd(p[i], x[i], broadcast(coefficient));
#pragma GCC unroll 4
  for (int i = 0; i < kCount; ++i)
    x[i] =
        p[i] * reinterpret_cast<Floats>((reinterpret_cast<Ints>(shifted[i]) << 23) + (127 << 23));
}

// Lane by lane the index of a panel's vector v.
ANABATIC_INLINE Ints lane_index(int v) {
  Ints index;
  for (int lane = 0; lane < kLanes; ++lane) index[lane] = v * kLanes + lane;
  return index;
}

// Bit i: key i of a panel lies within [begin, end), both counted from its first.
ANABATIC_INLINE std::uint32_t visible_keys(std::int64_t begin, std::int64_t end) {
  begin = std::max(begin, std::int64_t{0});
  end = std::min<std::int64_t>(end, kPanel);
  return begin < end ? ~std::uint32_t{0} << begin & ~std::uint32_t{0} >> (32 - end) : 0;
}
// The lanes of a panel's vector v.
ANABATIC_INLINE Ints lanes_of(std::uint32_t keys, int v) {
  return (static_cast<std::int32_t>(keys) >> lane_index(v) & 1) != 0;
}

}  // namespace anabatic::kernels::cpu::ANABATIC_ISA
