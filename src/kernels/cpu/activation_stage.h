// SPDX-License-Identifier: Apache-2.0
// What linear_activation.cpp does with a block of products while it is in cache, one variant an
// instruction set. Values are f32 or bf16 as they stand, or f16; strides are in elements.
#pragma once
#include <cstdint>

#include "spec/activation.h"
#include "tensor/dtype.h"

namespace anabatic::kernels::cpu {

// Factors of rows: row r has weights[slots[r]]. Null weights: 1.
struct RowWeights {
  const float* weights = nullptr;
  const std::int32_t* slots = nullptr;
};

// h = weight · activation(gate, up); of one operand, which is gate, where up is null.
struct ActivationBlock {
  spec::Activation activation;
  DType dtype;
  std::int64_t rows, columns;
  const std::byte *gate, *up;
  std::int64_t operand_stride;
  std::byte* h;
  std::int64_t h_stride;
  RowWeights row_weights;
};

// The int8 values and scales of x, as `quantize` computes them. A scale covers `scale_columns`
// columns of a row; `columns_before` of those of the first scale lie before x. Either x is read and
// the int8 values are written, or the reverse.
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

// dgate, dup from dh, all three of gradient_dtype; h (null: none) as ActivationBlock has it.
// partials (null: none): the s-th `segment` columns of row r give Σ dh · activation(gate, up) to
// partials[r · partial_stride + s]. A segment is a multiple of 32. gate_codes, up_codes (null:
// none): int8 values of gate and up. Each row of them is dequantised into its x just before it is
// used.
struct ActivationGradientBlock {
  spec::Activation activation;
  DType dtype, gradient_dtype;
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

struct ActivationStage {
  void (*forward)(const ActivationBlock& block);
  void (*gradient)(const ActivationGradientBlock& block);
  void (*quantize)(const CodesBlock& block);
};

namespace avx512_bf16 {
extern const ActivationStage kActivationStage;
}
namespace avx512 {
extern const ActivationStage kActivationStage;
}
namespace avx2 {
extern const ActivationStage kActivationStage;
}
namespace portable {
extern const ActivationStage kActivationStage;
}

}  // namespace anabatic::kernels::cpu
