// SPDX-License-Identifier: Apache-2.0
// One sweep over a parameter updates it and writes both packings of its new value:
//
//   %p, %m, %v = adamw(...)
//   %a = pack(%p)  {layout="panels"}              ->   %p, %m, %v, %a, %b = adamw_pack(...)
//   %b = pack(%p)  {layout="panels_transposed"}
//
// where both packings have one dtype; of a parameter in panels also `adamw_pack_transposed`, where
// the parameter itself is the other packing, and of one in halves `adamw_split_pack_transposed`.
// Updates of slices of one in halves (passes/slice_optimizer.h) write, one after the other, each
// its rows of the packing that stands:
//
//   %q, ... = adamw_split(%w, ...)    ->   %q, ..., %a = slice(%w, ..., %before)
//   %r, ... = adamw_split(%q, ...)         %r, ..., %p = slice(%q, ..., %a)
//   %p = pack(%r)
//
// where `slice` is adamw_split_slice_pack_transposed and %before what the step began with.
// Other readers of %p (the cast of a tied embedding) stay. Equal bits. Linear in nodes and slices.
// It stands behind apply_optimizer and slice_optimizer, which make these nodes.
//
// Gain, one core of a shared, busy 2-core Milan VM (AVX2), to bf16, against the three separate
// sweeps: 1.4x for 16 matrices of 1536 x 512, 1.05x for one of 4096 x 2048. Useful bytes (30 a
// parameter) at 80 and 55 % of a copy's rate, where adamw alone is at 115 %.
#pragma once
#include "passes/pass.h"

namespace anabatic::passes {

extern const Pass kFuseOptimizer;

}  // namespace anabatic::passes
