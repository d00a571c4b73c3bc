// SPDX-License-Identifier: Apache-2.0
// The head, the loss and their gradients as one op, so that the logits are never stored.
//
//   %l = linear(%x, w)                           ->   %loss, %dx, %dw = head_loss_with_gradient(
//   %loss, %lse = cross_entropy(%l, %t, %s)             %x, w, %t, %s)  {dloss=1}  forward
//   %dl = cross_entropy_gradient(%l, %t, %s, %lse, fill(1))
//   %dx = linear_input_gradient(%dl, w), %dw = linear_weight_gradient(%x, %dl)
//
// Without gradients (evaluation) the first two become one head_loss, and without %dw (a frozen
// head) all become one head_loss_with_input_gradient. Weights of rows are one more input of each.
// linear and label_log_probabilities become one head_log_probabilities; where a loss reads the
// logits too (preferences), it takes a second pass over the head. A cast of %dl is removed as well.
// Nothing is fused if another node reads %l, %lse or %dl, if the head has a bias, or if the loss's
// gradient is not a constant, times the scale of a step's loss (loss_scaled=true). The op runs
// forward, because its gradients depend on nothing later:
// the loss is known before the backward begins, and %dw is the first contribution to its gradient.
//
// A head with a bias is left apart: only ernie4_5_moe with `use_bias` has one. With 2 layers of
// width 512 and V 32000, cross_entropy, its gradient and the casts took 2.0 % of such a step, in
// bf16 on one thread of a shared Xeon (AVX-512). Logits [T, V] are stored there.
//
// Measured on one thread of a shared Milan VM (AVX2), bf16, T 1024, K 512, V 32000: 1590 -> 1370 ms
// (1.16x), and 200 MB of logits and their gradients become a workspace of 55 MB; with half of the
// labels ignored 2.4x. Evaluation 1.13x.
//
// Linear in nodes. It runs directly after the passes that build gradients and name their writers,
// and before any that changes how products read their weights: forward and gradients must still
// read one value.
#pragma once
#include "passes/pass.h"

namespace anabatic::passes {

extern const Pass kFuseHeadLoss;

}  // namespace anabatic::passes
