// SPDX-License-Identifier: Apache-2.0
// The sum of squares of a gradient, in f64.
#pragma once
#include "ir/op_schema.h"

namespace anabatic::ops {

extern const ir::OpSchema kSumSquares;

}  // namespace anabatic::ops
