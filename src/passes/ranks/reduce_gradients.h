// SPDX-License-Identifier: Apache-2.0
// Gradients are summed over the ranks that hold the same state: a state is cut over some axes of
// the mesh and whole over the others, and its gradient is summed over those. Never a mean: losses
// carry their share of the whole step on all ranks.
//
//   %g = accumulate(...)          %g = accumulate(...)
//   ... reads %g            →     %s = all_reduce(%g) {group = data}
//                                 ... reads %s
//
// It is an update of the backward: posted in the last micro-batch, once the gradient is whole.
// A mesh of one rank changes nothing.
#pragma once
#include "passes/pass.h"

namespace anabatic::passes {

extern const Pass kReduceGradients;

}  // namespace anabatic::passes
