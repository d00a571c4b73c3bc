// SPDX-License-Identifier: Apache-2.0
// Keeps frozen matrices in the format of PassOptions::frozen_format. Here in blocks of 128 columns:
//
//   state %w "w": f32[N,K]  parameter frozen
//   state %c "w.bf16": bf16[N,K]  copy of "w"   ->   state %w "w": i8_bf16_1x128[N,K]  parameter frozen
//   %y: bf16[T,N] = linear(%x, %c)                   %y: bf16[T,N] = linear(%x, %w)
//
// Only where plain products in bf16 alone read the matrix. So embeddings, routers and the head stay
// as they are. Products dequantise blocks of it as others pack theirs: both directions read this one
// copy, and no packing is made. Programs over the same states follow PassOptions::held_states.
//
// It changes results. Linear in nodes times states. It runs after precision, which makes the copies,
// and before differentiate and pack_weights, so that no other pass sees them.
#pragma once
#include "passes/pass.h"

namespace anabatic::passes {

extern const Pass kQuantizeFrozen;

}  // namespace anabatic::passes
