// SPDX-License-Identifier: Apache-2.0
// Operands of int8 products, with a scale for each block of 128 elements along the depth.
// ARCHITECTURE.md ("int8 products") defines int8 values and products; every engine gives the bits
// of that definition, except for which NaN a NaN is.
//
//   C[i, j] = Σ over blocks, ascending, of fma(float(Σ a·b), scale_a · scale_b, C[i, j])
//
// Sums within a block are exact, so no cut of rows or columns changes bits.
#pragma once
#include <cstddef>
#include <cstdint>

#include "base/rounding.h"
#include "kernels/cpu/gemm.h"

namespace anabatic::kernels::cpu {

inline constexpr std::int64_t kInt8Block = 128;  // elements along the depth that share a scale
inline constexpr std::int64_t kInt8Unit = 4;     // of them in a word
inline constexpr std::int64_t kInt8Panel = 16;   // lines of a panel

constexpr std::int64_t int8_blocks(std::int64_t depth) { return ceil_div(depth, kInt8Block); }
constexpr std::int64_t int8_units(std::int64_t depth) { return ceil_div(depth, kInt8Unit); }

// The lines of an operand, in one of two layouts. Nothing here owns memory.
//
//   rows    int8 values [line][line_stride], scales and falls_back [line][scale_stride]
//   panels  of 16 lines: int8 values [line/16][depth/4][16][4], 64-byte aligned; scales,
//           compensation [line/16][blocks][16]; falls_back [line/16][blocks]
//
// Int8 values of panels are 0 beyond the last line and the depth. Of rows, up to three bytes after
// the last element are read, and count for nothing.
struct Int8Lines {
  bool in_panels = false;
  // Values are u8: of a left operand in rows, without second values.
  bool is_unsigned = false;
  std::int8_t* codes = nullptr;
  BFloat16* scales = nullptr;
  std::int64_t line_stride = 0, scale_stride = 0;  // of rows
  // -128 · Σ int8 values of a line and block, of panels. Right operands need it: engines that
  // multiply unsigned bytes add 128 to signed ones of the left operand.
  std::int32_t* compensation = nullptr;
  // Null, or second values: x ≈ scale · (code + second / 254) in blocks that fall back. falls_back
  // is 0 or 1 for a row, and for a panel has a bit a line. Those of other blocks mean nothing.
  std::int8_t* second_codes = nullptr;
  std::int32_t* second_compensation = nullptr;
  std::uint16_t* falls_back = nullptr;
};

// What a product of coded operands reads. b is null where the Gemm itself has panels of weights. At
// most one operand has second values.
struct Int8Operands {
  const Int8Lines *a = nullptr, *b = nullptr;
};

// Engines of int8 products. Null where the compiler or the target has no such instructions.
const GemmEngine* gemm_int8_portable();
const GemmEngine* gemm_int8_avx2();
const GemmEngine* gemm_int8_avx_vnni();
const GemmEngine* gemm_int8_avx512_vnni();

}  // namespace anabatic::kernels::cpu
