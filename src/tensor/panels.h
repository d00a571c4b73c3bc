// SPDX-License-Identifier: Apache-2.0
// The packed layouts of a matrix [N,K], or of each matrix of a stack [E,N,K]: panels of 16 columns
// of a product's right operand, in the order in which GEMM reads it.
//
//   panels             [ceil(N/16)][ceil(K/u)][16][u]   columns n, depth k: x · Wᵀ
//   panels_transposed  [ceil(K/16)][ceil(N/u)][16][u]   columns k, depth n: dy · W
//
// u is 2 for bf16 and u16, 4 for int8 (what a product multiplies at once along the depth is one
// word), else 1. Padding beyond N and K is zero. The shape of a packed type stays that of the
// matrix.
#pragma once
#include "base/rounding.h"
#include "tensor/tensor_type.h"

namespace anabatic {

inline constexpr std::int64_t kPanelColumns = 16;

Layout panels_layout(bool transposed);
// Whether `layout` is one of the two.
bool is_panels(Layout layout);

constexpr std::int64_t panel_unit_depth(DType dtype) {
  if (dtype == DType::kInt8) return 4;
  return dtype == DType::kBFloat16 || dtype == DType::kUInt16 ? 2 : 1;
}

// A matrix as a right operand, `columns` by `depth`.
struct PanelShape {
  std::int64_t columns, depth, unit_depth;  // the last is 1, 2 or 4

  std::int64_t num_panels() const { return ceil_div(columns, kPanelColumns); }
  std::int64_t units() const { return ceil_div(depth, unit_depth); }
  std::int64_t panel_elements() const { return units() * kPanelColumns * unit_depth; }
  // Elements of one matrix, with its padding; not checked for overflow.
  std::int64_t num_elements() const { return num_panels() * panel_elements(); }
  // The position of element (column, k).
  std::int64_t offset(std::int64_t column, std::int64_t k) const {
    const std::int64_t in_unit = k & (unit_depth - 1);
    return column / kPanelColumns * panel_elements() + (k - in_unit) * kPanelColumns +
           column % kPanelColumns * unit_depth + in_unit;
  }
};
PanelShape panel_shape(DType dtype, std::int64_t rows, std::int64_t columns, bool transposed);
// For the matrices of a packed type; InternalError for another type.
PanelShape panel_shape(const TensorType& type);

// Elements in the bytes of a type, including the padding of panels.
std::int64_t stored_elements(const TensorType& type);

// The position of the i-th element in row-major order in a packed type, in elements.
std::int64_t packed_offset(const TensorType& type, std::int64_t i);
// The same for any type: i itself unless the type is packed.
inline std::int64_t element_offset(const TensorType& type, std::int64_t i) {
  return type.layout == kRowMajor ? i : packed_offset(type, i);
}

}  // namespace anabatic
