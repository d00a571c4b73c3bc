// SPDX-License-Identifier: Apache-2.0
// With policy int8, products that PassOptions::products has raised to fp32 read the f32 parameter,
// and their other operands in f32. Results keep their dtype:
//
//   %y: bf16[T,N] = linear(%x, %c)       ->   %f: f32[T,K] = cast(%x)
//                                             %g: f32[T,N] = linear(%f, %w)
//                                             %y: bf16[T,N] = cast(%g)
//
// with %c the copy "w.bf16" of %w "w". So each product of a weight changes by itself: forward,
// input gradient and weight gradient. A head with its loss and gradients changes as one, as its
// forward does. A copy that nothing else reads disappears. What is raised to bf16 stays as it is
// here: quantize_products leaves it alone.
//
// It changes results. Linear in nodes times states. It runs after fuse_head_loss, which takes the
// head, and before quantize_products and every pass that packs weights.
#pragma once
#include "passes/pass.h"

namespace anabatic::passes {

extern const Pass kRaiseProducts;

}  // namespace anabatic::passes
