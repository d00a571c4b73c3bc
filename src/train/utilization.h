// SPDX-License-Identifier: Apache-2.0
// Model FLOPs utilization (MFU): the FLOPs that a model needs, over those that the machine's
// multiply-add loop does in the same time.
#pragma once
#include <functional>
#include <optional>

namespace anabatic::train {

// The loop is timed for a few milliseconds when a run begins. A machine that is busy then, or whose
// clock rises later, would make a later step look faster than the machine can be. So a step that
// exceeds the peak has it measured again. If it still exceeds the peak, the share is not known.
class Utilization {
 public:
  // `peak` in FLOP/s, 0: not known. `measure` times the loop again, in milliseconds.
  Utilization(double peak, std::function<double()> measure);

  // In (0, 1]; none if the peak is not known, or below what was reached. Not for timed code.
  std::optional<double> of(double flops_per_second);

  double peak() const { return peak_; }

 private:
  double peak_;
  std::function<double()> measure_;
  int measurements_left_;
};

}  // namespace anabatic::train
