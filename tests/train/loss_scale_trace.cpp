// SPDX-License-Identifier: Apache-2.0
// loss_scale_trace: reads steps from its input, a character each, 1 for one whose gradients
// overflow. Prints the loss scale after each step, for tests/integration/parity_loss_scale.py.
#include <fmt/core.h>

#include <iostream>

#include "train/loss_scale/loss_scaler.h"

int main() {
  anabatic::train::LossScaler scaler(anabatic::train::LossScaleState{});
  for (char step = 0; std::cin >> step;) {
    scaler.take(step == '1');
    fmt::print("{} {}\n", static_cast<double>(scaler.scale()), scaler.update_of(0));
  }
}
