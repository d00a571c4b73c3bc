// SPDX-License-Identifier: Apache-2.0
// Matrix products on blocks of C, one engine an instruction set. An element of C sums over the
// depth in blocks of GemmEngine::sum_terms: each starts from zero, and is then added to the sums of
// those before it. The order depends on the products, their dtypes and the engine alone: not on the
// block of C, nor on its place, nor on whether B came packed. Calls that share a depth out at
// multiples of the blocks, and add to one C, have the bits of one call.
#pragma once
#include <cstddef>
#include <cstdint>

#include "kernels/cpu/sums.h"
#include "spec/device_spec.h"
#include "tensor/block_format.h"

namespace anabatic::kernels {
struct CodingCounts;
}

namespace anabatic::kernels::cpu {

struct BlockEngine;
struct Draws;
struct Int8Coding;
struct Int8Operands;

// Line i of a gathered operand is stored where line data[i] / divisor would be; null: where line i
// would be. The quotient is data[i] · multiplier >> shift, see row_index.
struct RowIndex {
  const std::int32_t* data = nullptr;
  std::uint64_t multiplier = 0;
  int shift = 0;

  // Where line i is stored. Always inline, for sources of several instruction sets call it.
  __attribute__((always_inline)) std::int64_t line(std::int64_t i) const {
    if (data == nullptr) return i;
    return static_cast<std::int64_t>(static_cast<std::uint64_t>(data[i]) * multiplier >> shift);
  }
};
// divisor in [1, 2^31).
RowIndex row_index(const std::int32_t* data, std::int64_t divisor);

// The norm of a matrix whose lines are rows of x, as spec/product_prologue.h has it. It is applied
// while elements are copied.
struct LineNorm {
  const float* statistics = nullptr;               // of line 0; null: there is no norm
  std::int64_t num_statistics = 1;                 // from line to line
  const float *weight = nullptr, *bias = nullptr;  // of column 0; a layer norm has a bias
};

// Dropout of a matrix whose lines are rows of x, or of the norm of them. It is applied while
// elements are copied.
struct LineDropout {
  const Draws* draws = nullptr;  // null: there is none. elementwise/draws.h
  // drop_columns of elementwise/draws.h.
  void (*drop)(const Draws&, std::int64_t row, std::int64_t column, std::int64_t count, DType,
               const std::byte* x, std::byte* y) = nullptr;
  std::int64_t first_row = 0;  // of line 0
};

// Of Matrix::fallback: from here on no block has second values, for n <= 128 and Σ >= max.
inline constexpr int kNoFallback = 128;

// Element (i, j) lies at data + i · row_stride + j · column_stride (in elements); one stride is 1.
// Packed (B only): panels of 16 columns, [columns/16][units of the depth][16] as tensor/panels.h
// has them; the strides mean nothing.
//
// Packed with compensations: int8 panels of tiles of 128 x 128 (tensor_type.h) for an engine of
// int8 products. scale_stride is then from 128 columns to the next, scale_step from 128 of the
// depth to the next.
struct Matrix {
  const std::byte* data = nullptr;
  DType dtype = DType::kFloat32;  // f32, bf16 or f16
  std::int64_t row_stride = 0, column_stride = 1;
  bool is_packed = false;
  // Above 0 for a quantised B, whose values are bf16: so many elements of a line share a scale. A
  // block of it is dequantised where others are packed. Elements are integers or of MXFP4.
  std::int64_t scale_columns = 0;
  ElementMap map = ElementMap::kLinear;
  const std::byte* scales = nullptr;  // bf16, or E8M0 in MXFP4
  std::int64_t scale_stride = 0;      // from line to line
  std::int64_t scale_step = 0;
  const std::int32_t* compensations = nullptr;
  // An int8 product quantises this operand: a block of n int8 values has second values if
  // n · max|code| > fallback · Σ|code|.
  int fallback = kNoFallback;
  // Indices of the lines along the stride that is not 1: rows of A, or the depth of a weight
  // gradient. Not for a B that is contiguous along the depth.
  RowIndex index{};
  // A norm of these lines: of A, or of a B that is not contiguous along the depth, in f32 or bf16.
  // Not for sparse products. An int8 product quantises the normalised lines.
  LineNorm norm{};
  // Likewise; not for int8 products.
  LineDropout dropout{};
};

// Rows of A this far apart, contiguous along an even depth and of the dtype that the engine
// multiplies (f32, or bf16 where it takes nothing else), are read in place; others are copied
// first.
inline constexpr std::int64_t kInPlaceRowBytes = 2112;

// A further product of the rows and columns of a Gemm. Dtypes, the strides that are 1 and packing
// are those of the first.
struct Operands {
  Matrix a, b;
  std::int64_t depth = 0;
};

// C[rows, columns] (+)= A[rows, depth] · B[depth, columns] (+ bias[columns]). C is row-major, or
// panels of 16 columns, [columns/16][rows][16], whose lanes beyond the last column become zero.
// Rows may have elements of others between their columns, which stay. What runs on blocks of C
// while they are in cache follows `compute`: see linear_activation.cpp.
//
// `further` products are added to the same sums, in their order after the first, before C is
// rounded.
struct Gemm {
  std::int64_t rows = 0, columns = 0, depth = 0;
  Matrix a, b;
  const float* bias = nullptr;
  std::byte* c = nullptr;
  DType c_dtype = DType::kFloat32;   // bf16 and f16 are rounded once, half to even
  std::int64_t c_stride = 0;         // from row to row; 16 in panels
  std::int64_t c_panel_stride = 16;  // from one 16 columns to the next
  std::int64_t c_column_step = 1;    // from column to column; c_panel_stride is 16 of them
  bool c_in_panels = false;          // f32 C without bias only
  bool accumulate = false;           // f32 C only, without a step of columns
  const Operands* further = nullptr;
  std::int64_t num_further = 0;
  // A is that of the last call on this workspace, for the same rows of a block. If its copy is
  // still complete, it is not packed once more.
  bool repeats_a = false;
  // Most terms of a block of the sums, an even number; 0: as many as the engine takes.
  std::int64_t sum_terms = 0;
  // C is not read again before it has left the caches, so whole tiles bypass them. For f32 C
  // without bias or accumulate, 64-byte aligned, row and panel strides multiples of 16.
  bool streams = false;
  // Null, or for f32 C without bias: gets the sum of squares of each tile of the result, [row
  // tiles] [column tiles], tiles as large as Blocking's steps.
  double* squares = nullptr;
  // What an engine with a coding multiplies: an entry for this product, and one for each further.
  const Int8Operands* coded = nullptr;
  // Null, or gets what quantising rows of A counts.
  CodingCounts* counts = nullptr;
};

struct Block {
  std::int64_t row_begin, row_end, column_begin, column_end;  // column_begin: a multiple of 16
};

// Upper bounds of a block, and what its sides are best multiples of.
struct Blocking {
  std::int64_t rows, columns, row_step, column_step;
};

struct GemmEngine {
  const char* isa;  // its name in DeviceSpec::instruction_sets; null: runs everywhere
  bool (*accepts)(DType a, DType b);
  Blocking (*blocking)(const Gemm&);
  std::int64_t (*sum_terms)(const Gemm&);  // of the depth, in one accumulator
  // Of one thread, a multiple of 64; never falls as rows, columns or depths grow.
  std::int64_t (*workspace_bytes)(const Gemm&);
  // The block is at most `blocking` large; the workspace is 64-byte aligned.
  void (*compute)(const Gemm&, const Block&, std::byte* workspace);
  // Engines of int8 products have it. It quantises the operands of a call's Gemms, all of them
  // before the first block (int8/operands.h). Null for others.
  const Int8Coding& (*coding)() = nullptr;
  // Dropout of lines, with this engine's vectors; null: none.
  decltype(LineDropout::drop) drop = nullptr;
  // Products with sparse weights in blocks (sparse/blocks.h); null: none.
  const BlockEngine* blocks = nullptr;
};

// Null where the compiler or the target has no such instructions.
const GemmEngine* gemm_portable();
const GemmEngine* gemm_avx2();
const GemmEngine* gemm_avx512();
const GemmEngine* gemm_avx512_bf16();
const GemmEngine* gemm_amx_bf16();

// Whether `engine` was built and `device` can run it.
bool usable(const GemmEngine* engine, const spec::DeviceSpec& device);

}  // namespace anabatic::kernels::cpu
