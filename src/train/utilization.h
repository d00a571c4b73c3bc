// SPDX-License-Identifier: Apache-2.0
// MFU: the FLOPs that a model needs, over those that the machine's multiply-add loop does in the
// same time.
#pragma once
#include <functional>
#include <optional>

namespace anabatic::train {

// The loop is timed for a few milliseconds when a run begins. A machine that is busy then, or whose
// clock has yet to rise, would make a later step look faster than the machine can be. So a step
// that beats the peak has it measured again; where it still beats the peak there is no share to
// tell.
class Utilization {
 public:
  // `peak` in FLOP/s, 0: not known. `measure` times the loop again, in milliseconds.
  Utilization(double peak, std::function<double()> measure);

  // In (0, 1]; none where the peak is not known, or not above what was reached. Not in timed code.
  std::optional<double> of(double flops_per_second);

  double peak() const { return peak_; }

 private:
  double peak_;
  std::function<double()> measure_;
  int measurements_left_;
};

}  // namespace anabatic::train
