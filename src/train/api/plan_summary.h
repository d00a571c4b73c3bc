// SPDX-License-Identifier: Apache-2.0
// A plan in the form that hosts of the library get.
#pragma once
#include "anabatic/plan.h"
#include "plan/outcome.h"
#include "plan/prices.h"
#include "train/calibration.h"
#include "train/memory_account.h"
#include "train/run_config.h"

namespace anabatic::train {

// Without the path of its file. `price_source` tells which calibration `price` uses.
PlanSummary summarize(const RunConfig& run, const lower::Compiled& training,
                      const MemoryAccount& memory, const plan::StepPrice& price,
                      const std::string& price_source);

// What is recomputed, compressed, offloaded or sliced.
std::vector<PlannedChoice> planned_choices(const lower::Compiled& training);

}  // namespace anabatic::train
