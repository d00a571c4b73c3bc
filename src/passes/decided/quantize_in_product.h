// SPDX-License-Identifier: Apache-2.0
// A product with an activation quantises the activation's operands itself.
//
//   %h, %g, %u = linear_activation_with_products(%x, wg, wu)
//   %gq = quantize(%g)
//   %uq = quantize(%u)
//     -> %h, %gq, %uq = linear_activation_with_codes(%x, wg, wu)
//
// Only where nothing else reads an operand, so that neither is stored whole. If one operand is
// quantised, so is the other one, even where nothing reads it.
//
// Equal bits. Saves a pass over both operands, and their bytes until they are quantised.
//
// Linear in nodes. It runs after recompute, which adds the `quantize` nodes.
#pragma once
#include "passes/pass.h"

namespace anabatic::passes {

extern const Pass kQuantizeInProduct;

}  // namespace anabatic::passes
