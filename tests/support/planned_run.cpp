// SPDX-License-Identifier: Apache-2.0
#include "support/planned_run.h"

#include "device/topology.h"
#include "plan/budget_error.h"
#include "train/objective/run_model.h"

namespace anabatic::testing {

PlannedRun plan_of(const train::RunConfig& run) {
  const model::ModelConfig config = train::load_run_model(run);
  const train::Machine machine{
      .device = device::describe_cpu(2),
      .efficiency = plan::default_efficiency(),
      .limits = {.process_bytes = std::int64_t{8} << 20, .finds_smallest = false}};
  PlannedRun result{.budgeted = plan::value_or_throw(train::plan_as_asked(run, config, machine))};
  const auto& training = result.budgeted.plan.training;
  result.file = train::make_plan_file(
      run, config, machine.device, training, result.budgeted.memory,
      train::price_run(run, training, machine.device, machine.efficiency).seconds);
  return result;
}

}  // namespace anabatic::testing
