// SPDX-License-Identifier: Apache-2.0
// Products read their weights from derived states in panel order (tensor/panels.h):
//
//   state %w "NAME.bf16" of "NAME"             state %p "NAME.packed" of "NAME", @panels
//
//   %y = linear(%x, %w)                   ->   %y = linear(%x, %p)
//
//   %dx = linear_input_gradient(%dy, %w)       %dx = linear_input_gradient(%dy, %t)
//
// with %t "NAME.packed_transposed" (see pack_again). A copy that nothing reads any more is removed;
// one with other readers (a tied embedding) stays next to the packing. Results have the same bits:
// the engines sum in one order, packed or not. Linear in nodes and states. It runs after
// differentiate, whose gradients read the weight of the forward node, and before apply_optimizer,
// which refreshes every derived state.
//
// Gain, one core of a shared, busy 2-core Milan VM (AVX2), bf16, seven matrices of 512 to 4096 a
// side, share of the f32 peak before and after: forward 16 rows 57 -> 88 %, 64 rows 69 -> 91 %, 256
// rows 82 -> 88 %; input-gradient 16 rows 48 -> 95 %, 256 rows 76 -> 91 %. Other runs were up to 8
// points lower.
#pragma once
#include "passes/pass.h"

namespace anabatic::passes {

extern const Pass kPackWeights;

}  // namespace anabatic::passes
