// SPDX-License-Identifier: Apache-2.0
// What stops a run whose numbers are no longer finite, and names where it began.
#pragma once
#include <cstdint>

#include "train/model_session.h"

namespace anabatic::train {

// Error "[train] step N: the loss is nan; first in layers.3 experts grouped_linear ..." when it is
// not finite: the forward of the micro-batch runs once more, looking at every call's outputs.
void require_finite_loss(BoundProgram& program, std::int64_t step, double loss);

// Error naming the gradients whose sum of squares is not finite. The update has left parameters and
// moments untouched then, unless it is part of the backward: then they are not fit to be saved.
void require_finite_gradients(const BoundProgram& program, std::int64_t step, double grad_norm);

// No parameter or moment holds a number that is not finite.
bool states_are_finite(ModelSession& session);

}  // namespace anabatic::train
