// SPDX-License-Identifier: Apache-2.0
// One sweep over a parameter updates it and writes both packings of its new value:
//
//   %p, %m, %v = optimizer_step(...)
//   %a = pack(%p)  {layout="panels"}              ->   %p, %m, %v, %a, %b = optimizer_step(...)
//   %b = pack(%p)  {layout="panels_transposed"}        {packs="both"}
//
// where both packings have one dtype. Where the parameter itself, or its upper 16 bits, is packed,
// it is one of the packings, and packs="transposed" writes the other.
// Where such upper 16 bits are updated by slices (passes/slice_optimizer.h), each slice writes its
// rows of the packing of the previous step:
//
//   %q, ... = optimizer_step(%w, ...)    ->   %q, ..., %a = optimizer_step(%w, ..., %before)
//   %r, ... = optimizer_step(%q, ...)         %r, ..., %p = optimizer_step(%q, ..., %a)
//   %p = pack(%r)
//
// where %before is what the step began with.
// Values of a grid with groups of 32, of a parameter in panels, come from the sweep too:
//
//   %p, %m, %v = optimizer_step(...)              %p, %m, %v, %a, %b = optimizer_step(...)
//   %a = fake_quantize(%p)  {grid="q4_0"}    ->       {packs="both", grid="q4_0"}
//   %b = pack(%a)
//
// Both packings of int8 products (quantize_products) are written likewise, tile by tile. There the
// second `pack` reads the first packing. These stay `pack` nodes: a single packing, those of
// weights on a grid, and those of updates by slices, whose rows are parts of tiles. Other readers
// of %p (the cast of a tied embedding) stay. Equal bits. Linear in nodes and slices. It runs after
// apply_optimizer and slice_optimizer, which make these nodes.
//
// Gain over three separate sweeps, to bf16 (AVX2, one core of a shared, busy 2-core Milan VM):
//
//   16 matrices of 1536 x 512     1.4x
//   one matrix of 4096 x 2048     1.05x
//
// Useful bytes (30 a parameter) move at 80 and 55 % of a copy's rate; the update alone is at 115 %.
#pragma once
#include "passes/pass.h"

namespace anabatic::passes {

extern const Pass kFuseOptimizer;

}  // namespace anabatic::passes
