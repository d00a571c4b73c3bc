// SPDX-License-Identifier: Apache-2.0
// The update: norm of all gradients, clip factor, AdamW a parameter, then the states derived from
// it.
//
//   gradients.w   ->   sum_squares, global_norm, clip_factor;
//                      w, first_moment.w, second_moment.w = optimizer_step(...); w.bf16 = cast(w)
//
// A parameter that split_parameters keeps in halves gets one with `split`. With
// OptimizerOptions::moments those of matrices are bf16, or codes of 8 bits beside states of scales,
// `first_moment_scales.w` and `second_moment_scales.w`. With in_backward all of it
// belongs to the backward action, where a gradient dies as soon as it is applied: the clip factor
// is that of the norm of the step before, a state `previous_grad_norm` that begins with 0, so that
// the first step is not clipped.
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
