// SPDX-License-Identifier: Apache-2.0
// Values that Decisions::recompute names are recomputed in the backward rather than kept for it.
// Nodes of phase `recompute` (analysis/rebuild.h) do so, just before the first node that reads one.
//
//   %y = rms_norm(%x, w)      forward         %y  = rms_norm(%x, w)   forward
//   ...                                  ->   ...
//   %d = f(%y, %dz)           backward        %y' = rms_norm(%x, w)   recompute
//                                             %d  = f(%y', %dz)       backward
//
// Values that Decisions::saved_as names are kept in another form, from their last use in the
// forward:
//
//   %y = rms_norm(%x, w)      forward         %y     = rms_norm(%x, w)     forward
//   ...                                       %c     = quantize(%y)        forward
//                                        ->   ...
//   %d = f(%y, %dz)           backward        %y'    = dequantize(%c)      recompute
//                                             %d     = f(%y', %dz)         backward
//
// Recomputation from %y reads %y' too. The passes after this one fuse conversions, and recomputed
// activations, with the products and gradients next to them.
//
// For values on disk the planner moves the bytes, and %y' = reload(%y) is where they are back.
// Compressed values change gradients, within the bounds of docs/internals/memory.md. Recomputed
// values do not: the same kernels run over the same values.
//
// Linear in nodes. It runs after common_subexpression, which would merge the recomputed values.
#pragma once
#include "passes/pass.h"

namespace anabatic::passes {

extern const Pass kRecompute;

}  // namespace anabatic::passes
