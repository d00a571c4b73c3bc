// SPDX-License-Identifier: Apache-2.0
// Reverse mode from the graph's objective: adds backward nodes after the forward ones, with phase
// kBackwardInput or kBackwardWeight and the layer and segment of the node they belong to.
//
//   %y = linear(%x, w)   ->   ... %dx = linear_input_gradient(%dy, w)
//                                 %dw = linear_weight_gradient(%x, %dy)   output gradients.w.0
//
// The gradient of a value with several readers is a chain of `add` in the order of the backward
// walk. Gradients of parameter NAME, also those of states derived from it, are listed as outputs
// `gradients.NAME.0`, `gradients.NAME.1`, ... in the order of their writers. Linear in nodes. It
// runs after precision, which fixes dtypes, and before accumulate_gradients, which takes these
// outputs.
#pragma once
#include <string>
#include <string_view>

#include "passes/pass.h"

namespace anabatic::passes {

extern const Pass kDifferentiate;

// "gradients.NAME.I": the I-th contribution between differentiate and accumulate_gradients.
std::string contribution_name(std::string_view parameter, std::size_t i);

}  // namespace anabatic::passes
