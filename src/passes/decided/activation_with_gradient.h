// SPDX-License-Identifier: Apache-2.0
// A recomputed activation is an output of the gradient that reads the same operands.
//
//   %h = activation(%g, %u)                                    recompute
//   %dw = linear_weight_gradient(%h, %dy)
//   %dg, %du = linear_activation_gradient(%dy, wd, %g, %u)
//     -> %dg, %du, %h = linear_activation_gradient(%dy, wd, %g, %u)  {with_activation=true}
//        %dw = linear_weight_gradient(%h, %dy)
//
// Only where weight gradients alone read the activation: any other reader may lead to that
// gradient. The gradient then runs before them.
//
// Equal bits. Saves a pass over both operands; the activation takes the bytes that it took before.
//
// Linear in nodes, but for sorting them. It runs after recompute, which adds the activation.
#pragma once
#include "passes/pass.h"

namespace anabatic::passes {

extern const Pass kActivationWithGradient;

}  // namespace anabatic::passes
