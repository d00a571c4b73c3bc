// SPDX-License-Identifier: Apache-2.0
// Products with sparse weights in blocks of 16 x 16 or 32 x 32, or with two of four present
// (spec/sparse_layout.h), of one matrix each. An engine of gemm.h has them where GemmEngine::blocks
// is not null.
//
// An element of C sums over the depth of the present blocks in the order and the blocks of sums
// that a dense product of the engine has. So it has the bits of that product by the matrix with
// zeroes in place of absent blocks, where all operands are finite.
#pragma once
#include <cstddef>
#include <cstdint>

#include "kernels/cpu/gemm.h"

namespace anabatic::kernels::cpu {

// C[rows, lines] = A[rows, depth] · Bᵀ (+ bias[lines]).
struct BlockProduct {
  std::int64_t side = 32;       // 16 with two of four
  bool is_two_of_four = false;  // then there are places in place of offsets and steps
  std::int64_t rows = 0, lines = 0, depth = 0;
  const std::byte* a = nullptr;  // row-major; both dtypes are f32, or bf16
  std::int64_t later_rows = 0;   // of later products, right after those of A
  DType dtype = DType::kFloat32;
  const std::byte* values = nullptr;      // 64-byte aligned
  const std::int32_t* offsets = nullptr;  // of panels
  const std::int32_t* steps = nullptr;    // of blocks
  const std::uint8_t* places = nullptr;   // of two weights of four
  const float* bias = nullptr;
  std::byte* c = nullptr;        // row-major, of `dtype`
  std::int64_t sum_terms = 512;  // a multiple of side
};

// dW[out, in] (+)= dyᵀ · x over `rows`, of present blocks alone. With `=` the others become zero,
// or stay as they are.
struct BlockGradient {
  std::int64_t side = 32;
  std::int64_t rows = 0, out = 0, in = 0;
  const std::byte *x = nullptr, *dy = nullptr;  // row-major
  DType dtype = DType::kFloat32;
  const std::int32_t* offsets = nullptr;
  const std::int32_t* steps = nullptr;
  float* dw = nullptr;  // row-major
  bool accumulate = false, leaves_absent = false;
  std::int64_t sum_terms = 512;   // an even number
  std::byte* x_panels = nullptr;  // x as `pack` packs it, 64-byte aligned
  bool streams = false;           // dW is not read again before it has left the caches
};

struct BlockEngine {
  std::int64_t unit_depth;  // elements of the depth in 4 bytes that it multiplies: 1, or 2 of bf16
  // Most rows of a call of `multiply`, and what their number is best a multiple of.
  std::int64_t most_rows, (*row_step)(std::int64_t side);
  // That of one thread in `multiply`.
  std::int64_t (*workspace_bytes)(const BlockProduct&);
  // Rows [row_begin, row_end) of C, of the panels [panel_begin, panel_end).
  void (*multiply)(const BlockProduct&, std::int64_t row_begin, std::int64_t row_end,
                   std::int64_t panel_begin, std::int64_t panel_end, std::byte* workspace);
  // Units [unit_begin, unit_end) of all rows of x as panels of 16 columns, [panel][units][16].
  void (*pack)(const BlockGradient&, std::int64_t unit_begin, std::int64_t unit_end);
  // The rows of dW that are panels [panel_begin, panel_end). The workspace has
  // side · units(rows) · 4 bytes.
  void (*gradient)(const BlockGradient&, std::int64_t panel_begin, std::int64_t panel_end,
                   std::byte* workspace);

  std::int64_t units(std::int64_t rows) const { return (rows + unit_depth - 1) / unit_depth; }
};

}  // namespace anabatic::kernels::cpu
