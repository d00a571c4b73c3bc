// SPDX-License-Identifier: Apache-2.0
// What a step with given places of its states keeps, recomputes, compresses, slices or puts on
// disk, so that its plan fits the budget.
#pragma once
#include "search/candidate.h"
#include "search/planned_step.h"

namespace anabatic::search {

// The step of the candidate's decisions; `whole` keeps everything. A refusal if nothing fits the
// budget. Values that are not kept for lack of bytes are kept in the first micro-batch, as far as
// gradients that are not started leave room: PlannedStep::first.
Outcome choose_memory(const Candidate& candidate, const PlannedStep& whole);

}  // namespace anabatic::search
