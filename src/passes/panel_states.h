// SPDX-License-Identifier: Apache-2.0
// Weights that GEMM reads as panels are also stored, updated and differentiated as panels
// (tensor/panels.h):
//
//   state %w "w": f32[N,K] parameter              state %w "w": f32[N,K]@panels parameter
//   state %p "w.packed": bf16 @panels             state %p "w.packed": bf16 @panels
//   state %g "gradients.w": f32[N,K]         ->   state %g "gradients.w": f32[N,K]@panels
//   %d = linear_weight_gradient(%x, %dy)          %d = linear_weight_gradient(%x, %dy)
//                                                        {layout="panels"}
//
// The moments have the layout of the parameter, so that the update reads four streams and writes
// three in one order. The forward packing is two rows of them next to each other, the transposed
// one a transposition of 16 x 16 blocks. In fp32 the parameter is the forward packing. This applies
// to a matrix that pack_weights has packed, whose gradients are all weight gradients of products
// and which nothing reads as rows. Embeddings, tied weights, routers and norms are not changed.
//
// Programs over the same states (validation) find the layout in PassOptions::held_states and follow
// it: a reader of rows there reads a derived state "NAME.rows". Without an update nothing changes.
// Files have rows whatever the layout. Equal bits but for the order in which a sum of squares runs
// through a matrix (f64). Linear in nodes and states. It runs after pack_weights, whose choice it
// follows, and before apply_optimizer, whose moments take the parameter's type.
//
// Gain, one core of a shared, busy 2-core Milan VM (AVX2), thread CPU time, alternating, bf16, the
// whole update without the norm's pass, useful bytes (30 a parameter) over a copy past the caches:
// 12 matrices of 1024 x 1024 98-101 -> 149-170 %. The sweep alone (stack of 20 x 512 x 3072), over
// a copy by ordinary stores: 81-105 -> 131-151 % in most runs, at worst 100 % next to a busy core.
// A weight gradient into panels is as fast as into rows at 256 rows a matrix, and up to 15 % slower
// at 16 rows with `=`.
#pragma once
#include "passes/pass.h"

namespace anabatic::passes {

extern const Pass kPanelStates;

}  // namespace anabatic::passes
