// SPDX-License-Identifier: Apache-2.0
// Keys that change how a step is planned and where its states lie, but no bit of what it computes.
#pragma once
#include <functional>
#include <string>
#include <vector>

#include "train/run_config.h"

namespace anabatic::testing {

struct PlanChange {
  std::string name;
  std::function<void(train::RunConfig&)> apply;
};
const std::vector<PlanChange>& plan_changes();

}  // namespace anabatic::testing
