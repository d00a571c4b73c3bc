// SPDX-License-Identifier: Apache-2.0
// What `train` plans for a run, without running it.
#pragma once
#include "train/budget.h"
#include "train/plan_file.h"

namespace anabatic::testing {

struct PlannedRun {
  train::BudgetedRun budgeted;
  train::PlanFile file;  // that --plan would replay
};

// On two CPU threads, by default prices, in a process of 8 MiB.
PlannedRun plan_of(const train::RunConfig& run);

}  // namespace anabatic::testing
