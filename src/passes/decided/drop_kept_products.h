// SPDX-License-Identifier: Apache-2.0
// A product with an activation no longer writes the activation's operands if nothing reads them.
//
//   %h, %g, %u = linear_activation_with_products(%x, wg, wu)
//     -> %h = linear_activation(%x, wg, wu)
//
// Equal bits. Saves the writes of both operands, and their bytes during the call.
//
// Linear in nodes. It runs after recompute, which takes the readers of such operands away.
#pragma once
#include "passes/pass.h"

namespace anabatic::passes {

extern const Pass kDropKeptProducts;

}  // namespace anabatic::passes
