// SPDX-License-Identifier: Apache-2.0
// Sparse weights: parameters of PassOptions::sparsity get a mask (spec/sparsity.h), which the
// optimizer reads:
//
//   state %w "w": f32[N,K] parameter  ->  state %w "w": f32[N,K] parameter
//                                         state %m "mask.w": u8[N/32,K/32] mask of "w"
//                                           pattern "block32"
//
// apply_optimizer then leaves what is absent out of the gradient's norm, and updates it to 0. Who
// holds the states chooses what is present, between two steps (train/sparsity). Weights of the
// units' products become sparse; routers stay as they are.
//
// It changes results. Linear in nodes times states. It runs after precision, which makes the copies
// that products read, and before packings hide which parameter they belong to.
#pragma once
#include "passes/pass.h"

namespace anabatic::passes {

extern const Pass kMaskWeights;

}  // namespace anabatic::passes
