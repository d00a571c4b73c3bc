// SPDX-License-Identifier: Apache-2.0
// Products of one x with several weights, and their gradients: linear and grouped_linear as passes
// join them. Nothing differentiates them.
#pragma once
#include "ir/op_schema.h"

namespace anabatic::ops {

extern const ir::OpSchema kLinearMany, kLinearManyInputGradient, kLinearManyWeightGradient,
    kGroupedLinearMany, kGroupedLinearManyInputGradient, kGroupedLinearManyWeightGradient;

}  // namespace anabatic::ops
