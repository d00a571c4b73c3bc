// SPDX-License-Identifier: Apache-2.0
// Tiles of attention in fp32: reading rows of a head, transposing them, and small products.
#pragma once
#include <algorithm>

#include "kernels/cpu/attention_shape.h"
#include "kernels/cpu/vector_math.h"

namespace anabatic::kernels::cpu::ANABATIC_ISA {

// to[count, padded] = factor · from[count, width] at a stride; columns beyond `width` and rows up
// to a multiple of 16 become zero.
template <class T>
void read_rows(const T* from, std::int64_t stride, std::int64_t count, std::int64_t width,
               float factor, float* to) {
  const std::int64_t padded = round_up(width, 16);
  for (std::int64_t i = 0; i < count; ++i, to += padded) {
    for_lanes(0, width, [&](std::int64_t j, int n) {
      store(to + j, factor * load(from + i * stride + j, n));
    });
    for (std::int64_t j = round_up(width, kLanes); j < padded; j += kLanes) store(to + j, Floats{});
  }
  std::fill(to, to + (round_up(count, 16) - count) * padded, 0.0f);
}

template <class T>
void write_rows(const float* from, std::int64_t count, std::int64_t width, float factor, T* to,
                std::int64_t stride) {
  const std::int64_t padded = round_up(width, 16);
  for (std::int64_t i = 0; i < count; ++i)
    for_lanes(0, width, [&](std::int64_t j, int n) {
      store(to + i * stride + j, factor * load(from + i * padded + j), n);
    });
}

// Exchanges the off-diagonal halves of every 2·kStep x 2·kStep block, then goes on with the next
// power of two.
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

// to[padded, kTileRows] = fromᵀ[padded, count]; columns up to a multiple of 16 come along.
inline void transpose(const float* from, std::int64_t count, std::int64_t padded, float* to) {
  for (std::int64_t i = 0; i < count; i += kLanes)
    for (std::int64_t j = 0; j < padded; j += kLanes) {
      Floats r[kLanes];
#pragma GCC unroll 16
      for (int k = 0; k < kLanes; ++k) r[k] = load(from + (i + k) * padded + j);
      transpose_lanes<1>(r);
#pragma GCC unroll 16
      for (int k = 0; k < kLanes; ++k) store(to + (j + k) * kTileRows + i, r[k]);
    }
}

// C[rows, columns] = A · B, or += . B and C are row-major. Rows are computed up to a multiple of
// kStripRows and columns up to one of kLanes: buffers have room for that.
struct Product {
  std::int64_t rows, columns, depth;
  const float* a;
  std::int64_t a_row, a_depth;  // strides
  const float* b;
  std::int64_t b_row;
  float* c;
  std::int64_t c_row;
  bool add;
};

// Registers: 6 x 4 sums of the 32 of AVX-512, 6 x 2 of 16 otherwise.
inline constexpr int kStripRows = 6, kStripVectors = kLanes == 16 ? 4 : 2;
static_assert(kBlockRows % kStripRows == 0);

template <int kVectors>
void multiply_strip(const Product& p, std::int64_t row, std::int64_t column) {
  Floats sums[kStripRows][kVectors] = {};
  float* c = p.c + row * p.c_row + column;
  if (p.add)
#pragma GCC unroll 6
    for (int i = 0; i < kStripRows; ++i)
#pragma GCC unroll 4
      for (int v = 0; v < kVectors; ++v) sums[i][v] = load(c + i * p.c_row + v * kLanes);
  const float *a = p.a + row * p.a_row, *b = p.b + column;
  for (std::int64_t k = 0; k < p.depth; ++k, a += p.a_depth, b += p.b_row) {
    Floats right[kVectors];
#pragma GCC unroll 4
    for (int v = 0; v < kVectors; ++v) right[v] = load(b + v * kLanes);
#pragma GCC unroll 6
    for (int i = 0; i < kStripRows; ++i) {
      const Floats left = broadcast(a[i * p.a_row]);
#pragma GCC unroll 4
      for (int v = 0; v < kVectors; ++v) sums[i][v] = madd(left, right[v], sums[i][v]);
    }
  }
#pragma GCC unroll 6
  for (int i = 0; i < kStripRows; ++i)
#pragma GCC unroll 4
    for (int v = 0; v < kVectors; ++v) store(c + i * p.c_row + v * kLanes, sums[i][v]);
}

inline void multiply(const Product& p) {
  for (std::int64_t column = 0; column < p.columns;) {
    const std::int64_t vectors =
        std::min<std::int64_t>(kStripVectors, ceil_div(p.columns - column, kLanes));
    for (std::int64_t row = 0; row < p.rows; row += kStripRows) {
      if (vectors == kStripVectors)
        multiply_strip<kStripVectors>(p, row, column);
      else if (vectors == 3)
        multiply_strip<3>(p, row, column);
      else if (vectors == 2)
        multiply_strip<2>(p, row, column);
      else
        multiply_strip<1>(p, row, column);
    }
    column += vectors * kLanes;
  }
}

// c[rows, columns] = a[rows, depth] · across[depth, columns]: scores and the like.
inline void multiply_across(const float* a, std::int64_t rows, std::int64_t depth,
                            const float* across, std::int64_t columns, float* c) {
  multiply({.rows = rows,
            .columns = columns,
            .depth = depth,
            .a = a,
            .a_row = round_up(depth, 16),
            .a_depth = 1,
            .b = across,
            .b_row = kTileRows,
            .c = c,
            .c_row = kTileRows,
            .add = false});
}

// c[rows, width] += weights[rows, depth] · b[depth, width].
inline void add_weighted(const float* weights, std::int64_t rows, std::int64_t depth,
                         const float* b, std::int64_t padded_width, float* c) {
  multiply({.rows = rows,
            .columns = padded_width,
            .depth = depth,
            .a = weights,
            .a_row = kTileRows,
            .a_depth = 1,
            .b = b,
            .b_row = padded_width,
            .c = c,
            .c_row = padded_width,
            .add = true});
}

}  // namespace anabatic::kernels::cpu::ANABATIC_ISA
