// SPDX-License-Identifier: Apache-2.0
// What linear_swiglu.cpp does with a block of products while it is in cache, one variant an
// instruction set. Values are f32 or bf16 as they stand; strides are in elements.
#pragma once
#include <cstdint>

#include "tensor/dtype.h"

namespace anabatic::kernels::cpu {

// Factors of rows: row r has weights[slots[r]]. Null weights: 1.
struct RowWeights {
  const float* weights = nullptr;
  const std::int32_t* slots = nullptr;
};

// h = weight · swiglu(gate, up).
struct SwigluBlock {
  DType dtype;
  std::int64_t rows, columns;
  const std::byte *gate, *up;
  std::int64_t operand_stride;
  std::byte* h;
  std::int64_t h_stride;
  RowWeights row_weights;
};

// Codes and scales of x, as `quantize` has them: a scale for each `scale_columns` of a row, whose
// first has `columns_before` of them ahead of x. One side is read, the other written.
struct CodesBlock {
  DType dtype;
  std::int64_t rows, columns;
  std::byte* x;
  std::int64_t x_stride;
  std::int8_t* codes;
  std::int64_t codes_stride;
  BFloat16* scales;
  std::int64_t scales_stride, scale_columns, columns_before;
};

// dgate, dup from dh; h (null: none) as SwigluBlock has it. partials (null: none): the s-th
// `segment` columns of row r give Σ dh · swiglu(gate, up) to partials[r · partial_stride + s]. A
// segment is a multiple of 32. Codes (null: none) of gate and up: each row's x is a row of them,
// made when it is its turn.
struct SwigluGradientBlock {
  DType dtype;
  std::int64_t rows, columns;
  const std::byte* dh;
  std::int64_t dh_stride;
  const std::byte *gate, *up;
  const CodesBlock *gate_codes, *up_codes;
  std::int64_t operand_stride;
  std::byte *dgate, *dup, *h;
  std::int64_t result_stride;
  RowWeights row_weights;
  float* partials;
  std::int64_t segment, partial_stride;
};

struct SwigluStage {
  void (*forward)(const SwigluBlock& block);
  void (*gradient)(const SwigluGradientBlock& block);
  void (*quantize)(const CodesBlock& block);
};

namespace avx512_bf16 {
extern const SwigluStage kSwigluStage;
}
namespace avx512 {
extern const SwigluStage kSwigluStage;
}
namespace avx2 {
extern const SwigluStage kSwigluStage;
}
namespace portable {
extern const SwigluStage kSwigluStage;
}

}  // namespace anabatic::kernels::cpu
