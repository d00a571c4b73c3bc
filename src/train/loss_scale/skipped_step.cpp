// SPDX-License-Identifier: Apache-2.0
#include "train/loss_scale/skipped_step.h"

#include <cmath>

#include "base/error.h"
#include "base/log.h"
#include "train/nonfinite.h"

namespace anabatic::train {

bool was_skipped(const BoundProgram& program, LossScaler& scaler, std::int64_t step,
                 double grad_norm, const std::function<std::string()>& first_overflow) {
  const bool is_finite = std::isfinite(grad_norm);
  if (!scaler.is_dynamic()) require_finite_gradients(program, step, grad_norm);
  const float scale = scaler.scale();
  LossScaler next = scaler;
  next.take(!is_finite);
  if (!next.gives_up()) {
    scaler = next;
    if (!is_finite)
      log_warning(
          "[train] step {}: a gradient is not finite with the loss times {}; the step is skipped, "
          "and the next one has {}",
          step, scale, next.scale());
    return !is_finite;
  }
  const std::string first = first_overflow();
  throw Error(fmt::format(
      "[train] step {}: a gradient is not finite with the loss times {}, and smaller scales do "
      "not help: {} steps in a row were skipped; first in {}",
      step, scale, next.state().skipped_in_row,
      first.empty() ? "no call that was run again" : first));
}

}  // namespace anabatic::train
