// SPDX-License-Identifier: Apache-2.0
#include "support/planned_run.h"

#include "device/topology.h"
#include "plan/budget_error.h"

namespace anabatic::testing {

PlannedRun plan_of(const train::RunConfig& run) {
  constexpr train::BudgetLimits kLimits{.process_bytes = std::int64_t{8} << 20,
                                        .finds_smallest = false};
  const model::ModelConfig config = model::load_config(run.model.path);
  const spec::DeviceSpec device = device::describe_cpu(2);
  const plan::OpEfficiency efficiency = plan::default_efficiency();
  PlannedRun result{.budgeted = plan::value_or_throw(
                        train::plan_as_asked(run, config, device, efficiency, kLimits))};
  const auto& training = result.budgeted.plan.training;
  result.file = train::make_plan_file(run, config, device, training, result.budgeted.memory,
                                      train::price_run(run, training, device, efficiency).seconds);
  return result;
}

}  // namespace anabatic::testing
