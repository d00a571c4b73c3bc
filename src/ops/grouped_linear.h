// SPDX-License-Identifier: Apache-2.0
// A linear map an expert over ragged rows: rows of expert e are [offsets[e], offsets[e+1]).
#pragma once
#include "ir/op_schema.h"

namespace anabatic::ops {

extern const ir::OpSchema kGroupedLinear, kGroupedLinearInputGradient, kGroupedLinearWeightGradient,
    kGroupedLinearWeightGradientSquares;

}  // namespace anabatic::ops
