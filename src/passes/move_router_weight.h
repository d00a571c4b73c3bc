// SPDX-License-Identifier: Apache-2.0
// The router's weight multiplies the input of the down projection instead of its output:
//
//   %h, %g, %u = grouped_linear_activation_with_products(%x, wg, wu, %o)
//   %y = grouped_linear(%h, wd, %o)
//   %out = unpermute(%y, %w, %slots)                     ->  %h with (..., %o, %map, %w)
//                                                            %out = permute_gradient(%y, %slots)
//   %dy, %dw = unpermute_gradient(%dout, %y, %w, %slots)
//   %dg, %du = grouped_linear_activation_gradient(%dy, wd, %o, %g, %u)
//   %dwd = grouped_linear_weight_gradient(%h, %dy, %o)   ->  %dg, %du, %dw =
//       grouped_linear_activation_gradient_with_weights(%dout, wd, %o, %g, %u, %map, %w)
//       %dwd = grouped_linear_weight_gradient(%h, %dout, %o, %map)  {gathered="dy" top_k=2}
//
// The router's gradient then reads the products gate and up, which are kept anyway, and not %y. So
// no tensor of tokens · k · hidden is saved for it, and %dy is not computed.
//
// Not equal bits: w · (h · wd) becomes (w · h) · wd. Let u be the unit roundoff of the activations.
// Before, h and y were rounded, each to (1 + u); now w · h and y are. So each element of %out
// differs by at most 4u Σⱼ |w| (|h| · |wd|) to first order, in addition to the products' own error.
// In the backward, w · dout is not rounded any more, and dh is rounded before it is weighted.
//
// Gain in `bench moe`, bf16, forward and backward, best of 5 alternating runs (thread CPU time, a
// shared Milan VM, AVX2):
//
//   8 experts 512x1536, top-2    326 -> 328 ms    arenas 106 -> 105 MB
//   64 experts 512x256, top-8    456 -> 450 ms    arenas 175 -> 160 MB
//
// All three passes: 334 -> 328 ms and 462 -> 450 ms.
//
// Not where the down projection has a bias, which would have to be weighed too: models add the
// biases of that projection after the combine (`expert_bias`).
//
// Rows that other ranks sent (shard_experts) are such a layer, with one expert a row.
//
// Linear in nodes. It runs after fuse_activation, whose forms it matches: without that pass it does
// nothing.
#pragma once
#include "passes/pass.h"

namespace anabatic::passes {

extern const Pass kMoveRouterWeight;

}  // namespace anabatic::passes
