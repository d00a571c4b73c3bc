// SPDX-License-Identifier: Apache-2.0
// Makes a gradient state `gradients.NAME` of every parameter that gets a gradient, and replaces the
// contribution outputs of differentiate by one `accumulate` that ends the state.
//
//   output %dw (gradients.w.0)   ->   state gradients.w; after = accumulate(before, %dw)
//
// A parameter with several readers (tied embeddings) has several contributions, in the order of
// their writers. Without an update the state's end is an output `gradients.NAME`. Parameters
// without a gradient get no state. Linear in outputs. It runs between differentiate and
// apply_optimizer.
#pragma once
#include "passes/pass.h"

namespace anabatic::passes {

extern const Pass kAccumulateGradients;

}  // namespace anabatic::passes
