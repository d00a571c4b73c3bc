// SPDX-License-Identifier: Apache-2.0
// Where the head_loss ops have the inputs behind x, weight, labels and scale: loss_scale f32[]
// where attribute `loss_scaled` says so, then weights where rows have them.
#pragma once
#include "spec/attributes.h"

namespace anabatic::spec {

inline constexpr int kHeadLossScaleInput = 4;

// Whether the gradients are those of the loss times an input.
inline bool is_loss_scaled(const Attributes& attributes) {
  return get_bool_or(attributes, "loss_scaled", false);
}

inline int head_weights_input(const Attributes& attributes) {
  return kHeadLossScaleInput + (is_loss_scaled(attributes) ? 1 : 0);
}

}  // namespace anabatic::spec
