// SPDX-License-Identifier: Apache-2.0
// linear_swiglu and grouped_linear_swiglu, alone or with the products behind them, and the
// gradients that start at the product in front of them. fuse_swiglu and move_router_weight make
// them.
#pragma once
#include "ir/op_schema.h"

namespace anabatic::ops {
extern const ir::OpSchema kGroupedLinearSwiglu, kGroupedLinearSwigluGradient,
    kGroupedLinearSwigluGradientWithWeights, kGroupedLinearSwigluWithProducts, kLinearSwiglu,
    kLinearSwigluGradient, kLinearSwigluWithProducts;
}  // namespace anabatic::ops
