// SPDX-License-Identifier: Apache-2.0
// Conversions: another dtype or a block format for the same elements, or a copy
// from disk of the same bytes.
#pragma once
#include "ir/op_schema.h"

namespace anabatic::ops {

// A matrix x in int8, with a scale for each `block` columns of a row.
TensorType in_int8(const TensorType& x, std::int64_t block);

extern const ir::OpSchema kCast, kDequantize, kQuantize, kReload;

}  // namespace anabatic::ops
