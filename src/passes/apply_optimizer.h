// SPDX-License-Identifier: Apache-2.0
// The update: the norm of all gradients, the clip factor, then AdamW and the derived states of each
// parameter.
//
//   gradients.w   ->   sum_squares, global_norm, clip_factor;
//                      w, first_moment.w, second_moment.w = optimizer_step(...); w.bf16 = cast(w)
//
// A parameter whose upper and lower 16 bits are two states (split_parameters) gets `split`. With
// OptimizerOptions::moments those of matrices are bf16, or quantised to 8 bits, each with its
// scales in one state (tensor/block_format.h).
// With in_backward all of it belongs to the backward action, where a gradient dies as soon as it is
// applied. The clip factor is then that of the previous step's norm, a state `previous_grad_norm`.
// It begins with 0, so the first step is not clipped.
//
// With a scaled loss (differentiate) the norm and the clip factor are multiplied by a step input
// `inverse_loss_scale`.
//
// Outputs: `grad_norm` (before clipping) and `sum_squares.NAME`. Parameters of at most one
// dimension (norms, biases) decay only with decay_norms_and_biases. A parameter without a gradient
// does not change, as in PyTorch where grad is None; a warning names it. Changes nothing when the
// options ask for no update. Linear in states. It runs after accumulate_gradients, whose states it
// reads.
#pragma once
#include <string_view>

#include "passes/pass.h"

namespace anabatic::passes {

inline constexpr std::string_view kInverseLossScale = "inverse_loss_scale";

extern const Pass kApplyOptimizer;

}  // namespace anabatic::passes
