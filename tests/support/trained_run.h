// SPDX-License-Identifier: Apache-2.0
// What a whole run gives, to compare with that of another one.
#pragma once
#include <filesystem>
#include <string>
#include <vector>

#include "train/run_config.h"

namespace anabatic::testing {

// Trains; the bytes of the last checkpoint's tensors.
std::string trained_bytes(const train::RunConfig& run);

// The loss of each step of a run that has trained.
std::vector<double> losses_of(const train::RunConfig& run);

// The run by a plan of a budget that is a third of the step's frame below the whole step's peak.
// The plan goes to FOLDER/plan.json. InvalidArgument where it recomputes nothing.
train::RunConfig recomputing(train::RunConfig run, const std::filesystem::path& folder);

}  // namespace anabatic::testing
