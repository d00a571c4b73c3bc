// SPDX-License-Identifier: Apache-2.0
// The update: norm of all gradients, clip factor, AdamW a parameter, then the states derived from
// it.
//
//   gradients.w   ->   sum_squares, global_norm, clip_factor;
//                      w, first_moment.w, second_moment.w = adamw(...); w.bf16 = cast(w)
//
// Outputs: `grad_norm` (before clipping) and `sum_squares.NAME`. Parameters of at most one
// dimension (norms, biases) decay only with decay_norms_and_biases. A parameter without a gradient
// stays as it is, as a PyTorch parameter whose grad is None does; a warning names it. Changes
// nothing when the options ask for no update. Linear in states. It stands after
// accumulate_gradients, whose states it reads.
#pragma once
#include "passes/pass.h"

namespace anabatic::passes {

extern const Pass kApplyOptimizer;

}  // namespace anabatic::passes
