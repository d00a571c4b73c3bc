// SPDX-License-Identifier: Apache-2.0
// What a step of given places of its states keeps, makes again, compresses, cuts or puts on disk,
// so that its plan keeps the budget.
#pragma once
#include "search/candidate.h"
#include "search/planned_step.h"

namespace anabatic::search {

// The step of the candidate's decisions; `whole` keeps everything. A refusal where the budget
// cannot be kept. What is then not kept for lack of bytes is kept in a step's first micro-batch, as
// far as gradients that are not begun leave them: PlannedStep::first.
Outcome choose_memory(const Candidate& candidate, const PlannedStep& whole);

}  // namespace anabatic::search
