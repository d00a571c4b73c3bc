// SPDX-License-Identifier: Apache-2.0
// What Decisions::recompute names is not kept for the backward but made again there, by the nodes
// that analysis/rebuild.h says, in phase `recompute` and just ahead of the first node that reads
// it.
//
//   %y = rms_norm(%x, w)      forward         %y  = rms_norm(%x, w)   forward
//   ...                                  ->   ...
//   %d = f(%y, %dz)           backward        %y' = rms_norm(%x, w)   recompute
//                                             %d  = f(%y', %dz)       backward
//
// What Decisions::saved_as names is kept in another form, made behind its last use in the forward:
//
//   %y = rms_norm(%x, w)      forward         %y     = rms_norm(%x, w)     forward
//   ...                                       %c, %s = quantize(%y)        forward
//                                        ->   ...
//   %d = f(%y, %dz)           backward        %y'    = dequantize(%c, %s)  recompute
//                                             %d     = f(%y', %dz)         backward
//
// and what is made again from it reads %y' too. The passes after this one fuse conversions, and
// activations that are made again, with the products and gradients next to them.
//
// For what waits on disk the planner moves the bytes, and %y' = reload(%y) is where they are back.
// Fewer bits change gradients, within the bounds of docs/internals/memory.md; what is only
// recomputed does not: the same kernels run over the same values. Costs what is recomputed; saves
// its bytes from the forward to there.
//
// Linear in nodes. It stands behind common_subexpression, which would merge what it makes.
#pragma once
#include "passes/pass.h"

namespace anabatic::passes {

extern const Pass kRecompute;

}  // namespace anabatic::passes
