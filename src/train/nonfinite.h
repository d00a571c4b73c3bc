// SPDX-License-Identifier: Apache-2.0
// Stops a run with numbers that are not finite, and names where they first appeared.
#pragma once
#include <cstdint>
#include <functional>
#include <string>

#include "train/model_session.h"

namespace anabatic::train {

// Error "[train] step N: the loss is nan; first in layers.3 experts grouped_linear ..." if it is
// not finite. To find the call, the forward of the micro-batch runs once more with every output
// checked.
void require_finite_loss(BoundProgram& program, std::int64_t step, double loss);

// The first call whose results are not finite, of those that `run` runs, with the results' type;
// empty where there is none.
std::string first_bad_call(BoundProgram& program, const std::function<void()>& run);

// Error naming the gradients whose sum of squares is not finite. The update has left parameters and
// moments unchanged then. If it is part of the backward they have changed and must not be saved.
void require_finite_gradients(const BoundProgram& program, std::int64_t step, double grad_norm);

// Whether all parameters and moments are finite.
bool states_are_finite(ModelSession& session);

}  // namespace anabatic::train
