// SPDX-License-Identifier: Apache-2.0
// Activations of feed-forward layers (spec/activation.h), alone and after the products that feed
// them; their gradients alone and after the product in front of them. fuse_activation and
// move_router_weight make the forms with products, recompute those with int8 values.
#pragma once
#include "ir/op_schema.h"

namespace anabatic::ops {

extern const ir::OpSchema kActivation, kActivationGradient;
extern const ir::OpSchema kLinearActivation, kLinearActivationGradient, kLinearActivationWithCodes,
    kLinearActivationWithProducts;
extern const ir::OpSchema kGroupedLinearActivation, kGroupedLinearActivationGradient,
    kGroupedLinearActivationGradientWithWeights, kGroupedLinearActivationWithCodes,
    kGroupedLinearActivationWithProducts;

}  // namespace anabatic::ops
