// SPDX-License-Identifier: Apache-2.0
// What becomes of a step whose gradients are not finite.
#pragma once
#include <cstdint>
#include <functional>
#include <string>

#include "train/loss_scale/loss_scaler.h"
#include "train/model_session.h"

namespace anabatic::train {

// Whether a step was skipped, by the norm that its update has seen; the scaler takes note. With a
// constant scale there is an error in place of a skip (require_finite_gradients). Where the scaler
// would give up it is one too, and the scaler stays as it was before the step. It has what
// `first_overflow` says: the first call whose results were not finite, or nothing.
bool was_skipped(const BoundProgram& program, LossScaler& scaler, std::int64_t step,
                 double grad_norm, const std::function<std::string()>& first_overflow);

}  // namespace anabatic::train
