// SPDX-License-Identifier: Apache-2.0
// The router's weight multiplies what goes into the down projection instead of what comes out:
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
// The router's gradient then needs the products gate and up, which are kept anyway, and not %y:
// nothing of tokens · k · hidden is saved for it, and %dy never stands.
//
// Not equal bits: w · (h · wd) becomes (w · h) · wd. With u the unit roundoff of the activations, h
// and y were rounded, each to (1 + u), and w · h and y are now: so each element of %out differs by
// at most 4u Σⱼ |w| (|h| · |wd|) to first order, beside the products' own error. In the backward
// w · dout was rounded and now is not, dh is rounded before it is weighted rather than after.
//
// Gain, `bench moe`, bf16, one thread's own time on a shared Milan VM (AVX2), best of 5 alternating
// runs, 8 experts 512x1536 top-2 and 64 experts 512x256 top-8, forward and backward: 326 ->
// 328 ms and 456 -> 450 ms; arenas 106 -> 105 MB and 175 -> 160 MB. All three passes: 334 -> 328 ms
// and 462 -> 450 ms.
//
// Linear in nodes. It runs after fuse_activation, whose forms it matches: without that pass it does
// nothing.
#pragma once
#include "passes/pass.h"

namespace anabatic::passes {

extern const Pass kMoveRouterWeight;

}  // namespace anabatic::passes
