// SPDX-License-Identifier: Apache-2.0
// x times the transpose of a weight: of one for all rows, of one a group of rows (a stack of
// experts), and of several weights at once, as passes join them (nothing differentiates those).
#pragma once
#include "ir/op_schema.h"

namespace anabatic::ops {

// linear.cpp; with a bias or without
extern const ir::OpSchema kLinear, kLinearInputGradient, kLinearWeightGradient,
    kLinearWeightGradientSquares;

// grouped_linear.cpp
extern const ir::OpSchema kGroupedLinear, kGroupedLinearInputGradient, kGroupedLinearWeightGradient,
    kGroupedLinearWeightGradientSquares;

// linear_many.cpp
extern const ir::OpSchema kLinearMany, kLinearManyInputGradient, kLinearManyWeightGradient,
    kGroupedLinearMany, kGroupedLinearManyInputGradient, kGroupedLinearManyWeightGradient;

}  // namespace anabatic::ops
