// SPDX-License-Identifier: Apache-2.0
// A gradient's sum of squares comes from the product that adds the last contribution to it:
//
//   %d = linear_weight_gradient(%x, %dy)         %d, %s = linear_weight_gradient_squares(%x, %dy)
//   %g = accumulate(%before, ..., %d)       ->   %g = accumulate(%before, ..., %d)
//   %s = sum_squares(%g)                         state "squares.gradients.NAME" -> %s
//
// so that the global norm costs no pass over the gradient. Every micro-batch forms the sum, and the
// last one's is used: a tile is squared as it is written. It is a state because it is passed from
// the backward action to the update. If the update is part of the backward, it is an ordinary
// value. Only gradients whose last writer, in the order of nodes, is such a product; embeddings,
// norms and the head keep their `sum_squares`. Each tile sums in f64, tiles in ascending order.
// Bits do not depend on threads, but on the instruction set, and they differ from those of
// `sum_squares` by roundings of f64. Linear in nodes. It runs after apply_optimizer, whose sums it
// takes.
//
// Gain, one core of a shared, busy 2-core Milan VM (AVX2), thread CPU time: 0.19 ns a parameter and
// micro-batch (stack of 64 x 256 x 512, 16 rows each) in place of a pass of 0.31 ns a parameter and
// step. With several micro-batches a step a separate pass is cheaper, so sums that the update would
// read stay separate then.
#pragma once
#include "passes/pass.h"

namespace anabatic::passes {

extern const Pass kAccumulateInGemm;

}  // namespace anabatic::passes
