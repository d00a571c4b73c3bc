// SPDX-License-Identifier: Apache-2.0
// A plan as hosts of the library hear of it.
#pragma once
#include "anabatic/plan.h"
#include "plan/outcome.h"
#include "plan/prices.h"
#include "train/calibration.h"
#include "train/memory_account.h"
#include "train/run_config.h"

namespace anabatic::train {

// Without the file that holds it. `price_source` is of the calibration that `price` is from.
PlanSummary summarize(const RunConfig& run, const lower::Compiled& training,
                      const MemoryAccount& memory, const plan::StepPrice& price,
                      const std::string& price_source);

// What is not kept for the backward as it is.
std::vector<PlannedChoice> planned_choices(const lower::Compiled& training);

}  // namespace anabatic::train
