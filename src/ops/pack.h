// SPDX-License-Identifier: Apache-2.0
// Converts a matrix, or a stack of them, to the packed layout of GEMM (tensor/panels.h), and back.
// With `first_row` and `rows` it packs these rows of each matrix. With `first_column` and
// `column_step` it packs the transpose of every so many columns of each: they become rows.
#pragma once
#include <string_view>

#include "ir/op_schema.h"

namespace anabatic::ops {

// The value of the attribute `layout` for row-major.
inline constexpr std::string_view kRowMajorName = "row_major";

// The attributes with which `pack` of a whole matrix has a result of this type.
spec::Attributes packing_attributes(const TensorType& packed);

// Whether the attribute `dtype`, of `pack` or of an update that packs, names panels of int8
// products.
bool packs_to_int8(const spec::Attributes& attributes);

extern const ir::OpSchema kPack;

}  // namespace anabatic::ops
