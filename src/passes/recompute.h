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
//   ...                                       %c, %s = quantize(%y)        forward
//                                        ->   ...
//   %d = f(%y, %dz)           backward        %y'    = dequantize(%c, %s)  recompute
//                                             %d     = f(%y', %dz)         backward
//
// Recomputation from %y reads %y' too. Where gate and up are saved as int8, or one is and the other
// is recomputed, the product itself writes both as int8 only:
//
//   %h, %gc, %gs, %uc, %us = linear_activation_with_codes(%x, ..)   forward
//
// The activation's gradient also computes the activation from gate and up (attribute
// `with_activation`), and runs before the weight gradient that reads it. Each such gradient but the
// backward's first reads gate and up as int8 (attribute `block`), without a `dequantize`.
//
// For values on disk the planner moves the bytes, and %y' = reload(%y) is where they are back.
// Compressed values change gradients, within the bounds of docs/internals/memory.md. Recomputed
// values do not: the same kernels run over the same values. Products whose gate and up are not kept
// no longer write them.
//
// Linear in nodes. It runs after common_subexpression, which would merge the recomputed values.
#pragma once
#include "passes/pass.h"

namespace anabatic::passes {

extern const Pass kRecompute;

}  // namespace anabatic::passes
