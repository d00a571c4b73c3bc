// SPDX-License-Identifier: Apache-2.0
// What the loss of a step is multiplied by before its backward (precision.loss_scale), so that
// gradients of few bits do not underflow. It is a constant, or follows torch.amp.GradScaler: a step
// with a gradient that is not finite is skipped and divides it by 2, and 2000 others double it.
#pragma once
#include <cstdint>

#include "base/json.h"
#include "train/run_config.h"

namespace anabatic::train {

// What a dynamic scale goes on from, in checkpoints.
struct LossScaleState {
  float scale = 65536;              // of the next step
  std::int64_t clean_steps = 0;     // since the scale changed
  std::int64_t skipped = 0;         // steps of the whole run
  std::int64_t skipped_in_row = 0;  // of these, the last ones
  bool operator==(const LossScaleState&) const = default;
};
Json to_json(const LossScaleState& state);
// InvalidArgument for what to_json has not written. The state of a new run for null.
LossScaleState read_loss_scale(const Json& json);

class LossScaler {
 public:
  explicit LossScaler(double constant) : constant_(static_cast<float>(constant)) {}
  explicit LossScaler(const LossScaleState& state) : is_dynamic_(true), state_(state) {}

  bool is_dynamic() const { return is_dynamic_; }
  float scale() const { return is_dynamic_ ? state_.scale : constant_; }
  const LossScaleState& state() const { return state_; }
  // Whether a resumed run would go on otherwise without it.
  bool is_worth_saving() const { return is_dynamic_ || state_.skipped > 0; }
  // Goes on from a checkpoint. Of a constant scale only skipped steps count.
  void restore(const LossScaleState& state) { state_ = state; }

  // The number of the update that this step makes if it is not skipped: 1 for the first.
  std::int64_t update_of(std::int64_t step) const { return step - state_.skipped; }
  // After a step whose backward has run: whether a gradient was not finite.
  void take(bool overflowed);
  // Whether smaller scales have not helped.
  bool gives_up() const;

 private:
  bool is_dynamic_ = false;
  float constant_ = 1;
  LossScaleState state_;
};

// precision.loss_scale without auto.
double loss_scale_of(const RunConfig& run);
// Whether the backward of a step begins from another number than 1.
bool scales_loss(const RunConfig& run);
// Warns of a number that rounds gradients.
LossScaler make_loss_scaler(const RunConfig& run);

}  // namespace anabatic::train
