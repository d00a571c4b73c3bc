// SPDX-License-Identifier: Apache-2.0
// Removes dead code: nodes that reach no output, no objective and no end of a state.
//
//   %a = add(%x, %y)                  ->   %b = scale(%x)
//   %b = scale(%x)   output %b             output %b
//
// Batch inputs, step inputs and states stay: they are the graph's interface. Linear in nodes and
// edges. It runs last, after every pass that leaves old nodes next to new ones.
#pragma once
#include "passes/pass.h"

namespace anabatic::passes {

extern const Pass kDeadCode;

}  // namespace anabatic::passes
