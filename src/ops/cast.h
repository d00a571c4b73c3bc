// SPDX-License-Identifier: Apache-2.0
// Conversions: another dtype for the same elements, int8 with a scale for each block, or a copy
// from disk of the same bytes.
#pragma once
#include <array>

#include "ir/op_schema.h"

namespace anabatic::ops {

// Types of the int8 values and scales of a matrix x, a scale for each `block` columns of a row.
std::array<TensorType, 2> code_types(const TensorType& x, std::int64_t block);

extern const ir::OpSchema kCast, kDequantize, kQuantize, kReload;

}  // namespace anabatic::ops
