// SPDX-License-Identifier: Apache-2.0
// What GEMM reads as panels is also kept, updated and differentiated as panels (tensor/panels.h):
//
//   state %w "w": f32[N,K] parameter              state %w "w": f32[N,K]@panels parameter
//   state %p "w.packed": bf16 @panels             state %p "w.packed": bf16 @panels
//   state %g "gradients.w": f32[N,K]         ->   state %g "gradients.w": f32[N,K]@panels
//   %d = linear_weight_gradient(%x, %dy)          %d = linear_weight_gradient(%x, %dy)
//                                                        {layout="panels"}
//
// The moments follow the parameter, so that the update reads four streams and writes three in one
// order; the forward packing is two rows of them side by side, the transposed one a turn of 16 x 16
// blocks. In fp32 the parameter is the forward packing. Only a matrix that pack_weights has packed,
// whose gradients are all weight-gradients of products and which nothing reads as rows: embeddings,
// tied weights, routers and norms stay.
//
// Programs over the same states (validation) find the layout in PassOptions::state_layouts and obey
// it: what reads rows there reads a derived state "NAME.rows". Without an update nothing changes.
// Files hold rows whatever the layout. Equal bits but for the order in which a sum of squares runs
// through a matrix (f64). Linear in nodes and states. It stands behind pack_weights, whose choice
// it follows, and before apply_optimizer, whose moments take the parameter's type.
#pragma once
#include "passes/pass.h"

namespace anabatic::passes {

extern const Pass kPanelStates;

}  // namespace anabatic::passes
