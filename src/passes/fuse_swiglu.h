// SPDX-License-Identifier: Apache-2.0
// swiglu behind the two products that feed it, and its gradient behind the product that makes its
// dy, block by block while a block is in cache; dense and grouped.
//
//   %g = linear(%x, wg), %u = linear(%x, wu)
//   %h = swiglu(%g, %u)                        ->  %h, %g, %u = linear_swiglu_with_products(%x, wg,
//   wu)
//                                                  (linear_swiglu where nobody else reads %g and
//                                                  %u)
//   %d = linear_input_gradient(%dy, wd)
//   %dg, %du = swiglu_gradient(%g, %u, %d)     ->  %dg, %du = linear_swiglu_gradient(%dy, wd, %g,
//   %u)
//
// %d, as large as %h, never stands. Blocks are read as they are stored: bits stay equal. Not where
// a product has a bias or the gradient another reader.
//
// Linear in nodes. It stands behind pack_weights, whose packings it takes along, and which knows
// products alone.
#pragma once
#include "passes/pass.h"

namespace anabatic::passes {

extern const Pass kFuseSwiglu;

}  // namespace anabatic::passes
