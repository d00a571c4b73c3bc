// SPDX-License-Identifier: Apache-2.0
// Sums of second values that are made before the tiles of some rows. Blocks fall back here and
// there, in few rows or columns of a tile. Gathered from many tiles they fill registers.
//
// A sum of a block is a whole number, so where and in which order it is made changes no bits.
#pragma once
#include "kernels/cpu/int8/lines.h"

namespace anabatic::kernels::cpu {

// Rows that are gathered at once, and blocks of a part of the depth.
inline constexpr std::int64_t kInt8SecondRows = 64, kInt8SecondBlocks = 16;

// The rows of a group of them that fall back in each block, a bit each.
struct alignas(64) Int8SecondRows {
  std::uint64_t of_block[kInt8SecondBlocks];
  bool any;
};

// What the second values of a block of the depth count, in some rows by the columns of a strip: f32
// sums, in one of two layouts.
//
//   rows     [row that falls back][48], of the rows whose bit is set, ascending
//   columns  of the n <= 16 columns that fall back, ascending: [n/4][panel of A][4][4][4], where
//            row 4r + i of a panel has [i][r][column % 4]
struct alignas(64) Int8SecondBlock {
  std::int32_t places[3][16];  // in columns: of the sum of each column of a panel that falls back
  std::uint64_t rows;          // that take second values, a bit each
  const float* sums;
  std::int64_t quad_stride;  // in columns: floats from four columns to the next
  std::int32_t num_quads;    // of four columns; 0: sums lie in rows
  std::uint16_t columns[3];  // that fall back, a bit each
};

}  // namespace anabatic::kernels::cpu
