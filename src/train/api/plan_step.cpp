// SPDX-License-Identifier: Apache-2.0
#include "anabatic/plan.h"
#include "base/error.h"
#include "device/memory.h"
#include "device/topology.h"
#include "plan/budget_error.h"
#include "train/api/plan_summary.h"
#include "train/budget.h"
#include "train/objective/run_model.h"
#include "train/ranks/ranks.h"

namespace anabatic {

PlanOutcome plan_step(const Config& config) { return plan_step(to_settings(config)); }

PlanOutcome plan_step(const Settings& settings, const std::string& yaml_file) {
  const train::RunConfig run = train::with_training_precision(
      train::load_run_config(yaml_file, {settings.begin(), settings.end()}));
  ANABATIC_REQUIRE(!run.model.path.empty(), "[plan] model.path: expected a value, got none");
  const std::int64_t process_bytes = device::current_resident_bytes();
  const model::ModelConfig config = train::load_run_model(run);
  train::require_supported_by_ranks(run);
  train::require_supported_by_ranks(run, config);
  const train::RunConfig own = train::of_one_thread(run, process_bytes);
  const train::Machine machine =
      train::priced_machine(device::describe_cpu(static_cast<int>(own.device.threads)),
                            {.process_bytes = process_bytes}, run.parallel.local_ranks);
  plan::Outcome<train::BudgetedRun> planned = train::plan_as_asked(own, config, machine);
  if (!planned) return plan::to_public(planned.refusal());
  train::add_other_ranks(planned->memory, run.parallel.local_ranks - 1);
  const lower::Compiled& training = planned->plan.training;
  const plan::StepPrice price = train::price_run(run, training, machine.device, machine.efficiency);
  return PlannedStep{
      .summary = train::summarize(run, training, planned->memory, price, machine.price_source),
      .choices = train::planned_choices(training),
      .disk_bytes = training.plan.disk_bytes};
}

}  // namespace anabatic
