// SPDX-License-Identifier: Apache-2.0
// How a run is planned: by a saved plan, within memory.budget, or within what the machine has left.
#pragma once
#include <cstdint>
#include <functional>
#include <string>

#include "plan/outcome.h"
#include "train/memory_account.h"
#include "train/run_plan.h"

namespace anabatic::train {

struct BudgetLimits {
  std::int64_t process_bytes = 0;  // resident before the run's programs, states and arenas exist
  std::int64_t data_bytes = 0;     // of these, tokenizer and data
  // What the system has left beside those: the budget where memory.budget is auto. 0: auto is none.
  std::int64_t available_bytes = 0;
  bool finds_smallest = true;  // which a refusal names, for the time of a few plans more
};

struct BudgetedRun {
  RunPlan plan;
  MemoryAccount memory;
  // Why the plan is not simply the fastest, for people: what is available, or which file it is
  // from. "" where the run config says it all.
  std::string note;
};

// A refusal where nothing keeps within the budget; InvalidArgument where memory.plan is of another
// step.
plan::Outcome<BudgetedRun> plan_as_asked(const RunConfig& run, const model::ModelConfig& config,
                                         const spec::DeviceSpec& device,
                                         const plan::OpEfficiency& efficiency,
                                         const BudgetLimits& limits);

struct SmallestBudget {
  std::int64_t bytes = 0;   // `holds` said so
  bool is_smallest = true;  // 2 % less does not hold; false: out of trials
};

// `holds` plans with a budget. It may hold for one budget and not for a slightly larger one. `most`
// holds; the search begins at `guess`. Steps grow while they succeed, so a good guess takes two
// trials. `may_try(n)`: whether there may be a trial beyond n.
SmallestBudget search_smallest_budget(std::int64_t guess, std::int64_t most,
                                      const std::function<bool(int)>& may_try,
                                      const std::function<bool(std::int64_t)>& holds);

}  // namespace anabatic::train
