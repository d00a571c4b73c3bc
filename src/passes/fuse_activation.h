// SPDX-License-Identifier: Apache-2.0
// An activation after the products that feed it, and its gradient after the product that makes its
// dy, block by block while a block is in cache; dense and grouped, of two operands or one.
//
//   %g = linear(%x, wg), %u = linear(%x, wu)
//   %h = activation(%g, %u)
//     -> %h, %g, %u = linear_activation_with_products(%x, wg, wu)
//        (linear_activation where nobody else reads %g and %u)
//   %d = linear_input_gradient(%dy, wd)
//   %dg, %du = activation_gradient(%g, %u, %d)
//     -> %dg, %du = linear_activation_gradient(%dy, wd, %g, %u)
//
// %d, as large as %h, is never stored. Blocks are read as they are stored: bits stay equal. Biases
// of experts come along. Not where a dense product has a bias or the gradient another reader. The
// gradient's side is fused with a bias too. In gpt2 the activations that stay apart took 0.36 % of
// a step (2 layers of width 512, bf16, one thread of a shared Xeon, AVX-512), the most to be saved.
//
// Gain, `bench moe`, bf16, one thread's own time on a shared Milan VM (AVX2), best of 5 alternating
// runs, 8 experts 512x1536 top-2 and 64 experts 512x256 top-8, forward and backward: none by
// itself, 334 -> 335 ms and 475 -> 477 ms, for SwiGLU is bound by its arithmetic there. Apart, in
// cache, 256 rows an expert of 512x1536: products and SwiGLU 17.5 -> 17.4 ms, with the gradient 9.3
// -> 9.4 ms. The two passes after it build on its ops.
//
// Linear in nodes. It runs after pack_weights, whose packings it takes along, and which knows
// products alone.
#pragma once
#include "passes/pass.h"

namespace anabatic::passes {

extern const Pass kFuseActivation;

}  // namespace anabatic::passes
