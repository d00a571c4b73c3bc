// SPDX-License-Identifier: Apache-2.0
// The head, the loss and their gradients as one op, so that logits never stand whole.
//
//   %l = linear(%x, w)                           ->   %loss, %dx, %dw = head_loss_with_gradient(
//   %loss, %lse = cross_entropy(%l, %t, %s)             %x, w, %t, %s)  {dloss=1}  forward
//   %dl = cross_entropy_gradient(%l, %t, %s, %lse, fill(1))
//   %dx = linear_input_gradient(%dl, w), %dw = linear_weight_gradient(%x, %dl)
//
// Without gradients (evaluation) the first two become one head_loss. A cast of %dl goes as well.
// Nothing is fused where anyone else reads %l, %lse or %dl, where the head has a bias, or where the
// loss's gradient is not a constant. The op runs forward, for its gradients wait for nothing: the
// loss is known before the backward begins, and %dw is the first contribution to its gradient.
//
// Linear in nodes. It stands behind the passes that build gradients and name their writers, and
// before pack_weights, for it reads the head as it is.
#pragma once
#include "passes/pass.h"

namespace anabatic::passes {

extern const Pass kFuseHeadLoss;

}  // namespace anabatic::passes
