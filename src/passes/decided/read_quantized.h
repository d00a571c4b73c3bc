// SPDX-License-Identifier: Apache-2.0
// A gradient of an activation reads the int8 values of the activation's operands.
//
//   %g = dequantize(%gq)
//   %u = dequantize(%uq)
//   %dg, %du = linear_activation_gradient(%dy, wd, %g, %u)
//     -> %dg, %du = linear_activation_gradient(%dy, wd, %gq, %uq)
//
// Only where nothing else reads an operand. Not the backward's first such gradient: memory is
// fullest there, and its results take the bytes of operands that are whole.
//
// Equal bits. Saves a pass over both operands. The results need bytes of their own during the call.
//
// Linear in nodes. It runs after activation_with_gradient, which takes away an operand's other
// reader.
#pragma once
#include "passes/pass.h"

namespace anabatic::passes {

extern const Pass kReadQuantized;

}  // namespace anabatic::passes
