// SPDX-License-Identifier: Apache-2.0
// silu(gate) times up (Shazeer, 2020), alone and behind the products that feed it; the gradients
// alone and behind the product in front of them. fuse_swiglu and move_router_weight make the forms
// with products, recompute those with codes.
#pragma once
#include "ir/op_schema.h"

namespace anabatic::ops {

extern const ir::OpSchema kSwiglu, kSwigluGradient;
extern const ir::OpSchema kLinearSwiglu, kLinearSwigluGradient, kLinearSwigluWithCodes,
    kLinearSwigluWithProducts;
extern const ir::OpSchema kGroupedLinearSwiglu, kGroupedLinearSwigluGradient,
    kGroupedLinearSwigluGradientWithWeights, kGroupedLinearSwigluWithCodes,
    kGroupedLinearSwigluWithProducts;

}  // namespace anabatic::ops
