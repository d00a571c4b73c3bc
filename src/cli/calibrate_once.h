// SPDX-License-Identifier: Apache-2.0
// Calibration of this machine and its disk before the first run whose plan depends on it.
#pragma once
#include "train/run_config.h"

namespace anabatic::cli {

// If `run` has a memory.budget and this machine has no calibration, measures and stores one,
// provided that it takes a few seconds at most. Prints one line about it on standard error.
// Likewise measures the speed of the disk for states, in a fraction of a second. Never throws for
// what it cannot measure or store: default prices are used then.
void calibrate_once(const train::RunConfig& run);

}  // namespace anabatic::cli
