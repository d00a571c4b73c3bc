// SPDX-License-Identifier: Apache-2.0
// Prices of this machine and its disk, measured ahead of the first run that chooses by them.
#pragma once
#include "train/run_config.h"

namespace anabatic::cli {

// Where `run` has a memory.budget and this machine no calibration: measures and stores one, if that
// takes a few seconds at most, and says so in one line on standard error. Likewise the speed of the
// disk that states may go to, a fraction of a second. Never throws for what it cannot measure or
// store: default prices serve then.
void calibrate_once(const train::RunConfig& run);

}  // namespace anabatic::cli
