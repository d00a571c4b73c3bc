// SPDX-License-Identifier: Apache-2.0
// Gradients against finite differences. The objective is the sum of the outputs, each element times
// its gradient.
#pragma once
#include "plugin/check/checked_call.h"

namespace anabatic::plugin::check {

// Moves each input that has a gradient in a random direction. `of_outputs` are gradients of the
// outputs, `of_inputs` what the backward makes of them. Fails where they differ by more than
// rounding and the curvature explain, for every one of three steps: a kink between two points is
// not in all of them. Nothing is compared where an operand is bf16, or an output is no number.
void check_differences(Caller& caller, const Operands& inputs, const Operands& outputs,
                       const Operands& of_outputs, const Operands& of_inputs);

}  // namespace anabatic::plugin::check
