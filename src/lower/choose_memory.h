// SPDX-License-Identifier: Apache-2.0
// What a step of given places of its states keeps, makes again, compresses, cuts or puts on disk,
// so that its plan keeps the budget.
#pragma once
#include "ir/graph.h"
#include "lower/attempt.h"
#include "lower/compile.h"
#include "plan/plan.h"

namespace anabatic::lower {

// Replaces graph, plan and reports of `result`, which keep everything, by those of the decision.
// plan::BudgetError where the budget cannot be kept.
void choose_memory(const Attempt& attempt, Compiled& result);

// What is not kept for lack of bytes is kept in a step's first micro-batch, as far as gradients
// that are not begun leave them: sets result.first, or leaves it. `whole` and its plan keep
// everything.
void choose_first_memory(const Attempt& attempt, const ir::Graph& whole,
                         const plan::Plan& whole_plan, Compiled& result);

}  // namespace anabatic::lower
