// SPDX-License-Identifier: Apache-2.0
// Calls that Decisions::slices names run in slices, one after the other, in less workspace. The
// head is cut by rows, attention's gradient by heads, and input gradients of experts by groups of
// them, which then pack the weights of a group at a time.
//
//   %t  = pack(%w)                           recompute
//   %dx = grouped_linear_input_gradient(%dy, %t, ...)
//                                                ->
//   %dx = grouped_linear_input_gradient(%dy, %w, ...) {slices=8}
//
// Equal bits. Costs the additional packing; saves workspace, and whole packings.
//
// Linear in nodes. It runs after the fusions, whose patterns know no slices, and before recompute.
#pragma once
#include "passes/pass.h"

namespace anabatic::passes {

extern const Pass kSliceCalls;

}  // namespace anabatic::passes
