// SPDX-License-Identifier: Apache-2.0
// Keeps frozen matrices in the format of PassOptions::frozen_format, such as i8_bf16_1x128:
//
//   state %w "w": f32[N,K] frozen            ->   state %w "w": i8_bf16_1x128[N,K] frozen
//   state %c "w.bf16": bf16[N,K] copy             %y: bf16[T,N] = linear(%x, %w)
//   %y: bf16[T,N] = linear(%x, %c)
//
// Only where plain products in bf16 alone read the matrix. So embeddings, routers and the head stay
// as they are. In e2m1_e8m0_1x32 only stacks of matrices are kept. Products dequantise blocks of it
// as others pack theirs: both directions read this one copy, and no packing is made.
//
// With policy int8 such a matrix without a format is kept in bf16, as `upper`. Packings in int8 are
// made of that (quantize_products), whatever passes are off. Programs over the same states follow
// PassOptions::held_states.
//
// It changes results. Linear in nodes times states. It runs after precision, which makes the
// copies, and before differentiate and pack_weights, so that no other pass sees them.
#pragma once
#include "passes/pass.h"

namespace anabatic::passes {

extern const Pass kQuantizeFrozen;

}  // namespace anabatic::passes
