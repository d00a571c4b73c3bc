// SPDX-License-Identifier: Apache-2.0
// Adds the leaves of a rank's part of a step (spec/step.h) to each gradient, by a sum for each
// level of the rank's tree:
//
//   state gradients.w; after = %g    ->   state leaf_sums.w.0, leaf_sums.w.1
//                                         state gradients.w; after = sum_leaves(%g, %0, %1)
//
// Nothing of the graph writes the sums: an action between leaves does (lower/lower_leaves.h). With
// one leaf a rank it does nothing. It runs before reduce_gradients, which sums over ranks, and so
// continues the tree. Linear in states and nodes.
#pragma once
#include "passes/pass.h"

namespace anabatic::passes {

extern const Pass kSumLeaves;

}  // namespace anabatic::passes
