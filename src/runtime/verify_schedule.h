// SPDX-License-Identifier: Apache-2.0
// Whether a list of entries is a step of a program: checked before it runs.
#pragma once
#include <cstdint>
#include <span>
#include <vector>

#include "runtime/program.h"

namespace anabatic::runtime {

// Follows the entries through their calls. Throws InternalError "[schedule verifier] RULE: ..."
// unless
// - every entry has its variant,
// - a frame holds one micro-batch: each forward is followed by its backward, of the same layout,
// - in each leaf every gradient is assigned once, before it is added to or read,
// - each leaf is in one sum, and each sum in one sum or in the update,
// - every exchange is posted in the order of the program, and awaited within its micro-batch, or
//   within the step if it is of a gradient, which is exchanged once,
// - every state on disk is read once, before its update, and written after it,
// - the update is the last entry, after all micro-batches.
void verify_schedule(const Program& program, std::span<const StepEntry> schedule);

// The verified schedule of a step of so many micro-batches (spec::step_schedule).
std::vector<StepEntry> schedule_of(const Program& program, std::int64_t num_micro_batches);

}  // namespace anabatic::runtime
