// SPDX-License-Identifier: Apache-2.0
// Decides how a run is planned: by a saved plan, within memory.budget, or within available memory.
#pragma once
#include <cstdint>
#include <functional>
#include <string>

#include "plan/outcome.h"
#include "train/machine.h"
#include "train/memory_account.h"
#include "train/run_plan.h"

namespace anabatic::train {

struct BudgetedRun {
  RunPlan plan;
  MemoryAccount memory;
  // Why the plan is not simply the fastest, for people: how much is available, or which file it
  // comes from. "" if the run config says it all.
  std::string note;
};

// A refusal if nothing fits the budget; InvalidArgument if memory.plan is for another step.
plan::Outcome<BudgetedRun> plan_as_asked(const RunConfig& run, const model::ModelConfig& config,
                                         const Machine& machine);

struct SmallestBudget {
  std::int64_t bytes = 0;   // `holds` was true for it
  bool is_smallest = true;  // 2 % less is too small; false: no trials were left
};

// `holds` plans with a budget. It may be true for one budget and false for a slightly larger one.
// It is true for `most`; the search begins at `guess`. Steps grow while they succeed, so a good
// guess takes two trials. `may_try(n)`: whether there may be a trial after n trials.
SmallestBudget search_smallest_budget(std::int64_t guess, std::int64_t most,
                                      const std::function<bool(int)>& may_try,
                                      const std::function<bool(std::int64_t)>& holds);

}  // namespace anabatic::train
