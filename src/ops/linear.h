// SPDX-License-Identifier: Apache-2.0
// x times the transpose of a weight, with a bias or without.
#pragma once
#include "ir/op_schema.h"

namespace anabatic::ops {

extern const ir::OpSchema kLinear, kLinearInputGradient, kLinearWeightGradient,
    kLinearWeightGradientSquares;

}  // namespace anabatic::ops
