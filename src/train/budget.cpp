// SPDX-License-Identifier: Apache-2.0
#include "train/budget.h"

#include <algorithm>
#include <cmath>
#include <vector>

#include "base/error.h"
#include "base/text.h"
#include "plan/largest_consumers.h"
#include "plugin/plugin_set.h"
#include "train/plan_file.h"
#include "train/swap_tier.h"

namespace anabatic::train {
namespace {

// Plans that a search for the smallest budget may make: fewer of a large model, whose plan takes a
// part of a second, by its nodes. The number of plans is no matter of time: a refusal names the
// same budget on a busy machine.
constexpr int kMostTrials = 10, kFewestTrials = 3, kTriedNodes = 30'000;
constexpr double kStep = 0.02;
// Room for rows that come to experts, in even shares, the largest first.
constexpr double kRooms[] = {4, 3, 2, 1.5, 1.25};

MemoryAccount account_of(const RunConfig& run, const RunPlan& plan, const Machine& machine) {
  const BudgetLimits& limits = machine.limits;
  return account_memory(run, plan.training, plan.evaluation ? &*plan.evaluation : nullptr,
                        machine.device.num_threads, limits.process_bytes, limits.data_bytes,
                        limits.mpi_bytes);
}

// Bytes in the unit of memory.budget, which may be that of plain numbers.
std::string in_unit(const RunConfig& run, std::int64_t bytes) {
  const std::string& unit = run.memory.budget_unit;
  return unit.empty() ? fmt::format("{} ({})", bytes, format_bytes(bytes))
                      : format_bytes_up(bytes, unit);
}

// The budget in a message must be enough too. It is a little larger than the one that was tried,
// and some budgets above the smallest may be too small for a plan.
std::string text_that_holds(const RunConfig& run, std::int64_t bytes,
                            const std::function<bool(std::int64_t)>& holds) {
  for (const std::int64_t more : {bytes, bytes + bytes / 200})
    if (const std::string text = format_bytes_up(more, run.memory.budget_unit);
        holds(parse_bytes(text).value_or(0)))
      return run.memory.budget_unit.empty() ? in_unit(run, more) : text;
  return std::to_string(bytes);
}

std::string remedy_of_activations(const RunConfig& run) {
  const std::int64_t samples = run.train.micro_batch_size,
                     micro_batches = run.train.gradient_accumulation_steps;
  std::string text =
      samples % 2 == 0 ? fmt::format(
                             "train.micro_batch_size: {} with train.gradient_accumulation_steps: "
                             "{} takes about half",
                             samples / 2, 2 * micro_batches)
      : samples > 1
          ? fmt::format("train.micro_batch_size: 1 with train.gradient_accumulation_steps: {}",
                        samples * micro_batches)
          : fmt::format("data.sequence_length: {} takes about half",
                        std::max<std::int64_t>(run.data.sequence_length / 2, 1));
  if (run.memory.activations == "resident") text += ", memory.activations: disk may move them";
  if (run.memory.compress == "off") text += ", memory.compress: bf16 or int8 shrinks saved ones";
  return text;
}

// Uses of memory in the step, as the planner names them, and those of the process outside the step.
std::vector<plan::Consumer> consumers_of(const RunConfig& run, const plan::Refusal& refusal,
                                         const MemoryAccount& account) {
  std::vector<plan::Consumer> consumers = refusal.consumers;
  for (plan::Consumer& consumer : consumers)
    if (consumer.name == plan::kActivations) consumer.remedy = remedy_of_activations(run);
  if (refusal.lacks_disk) consumers.push_back({refusal.reason, 0, ""});
  const std::int64_t validation = account.bytes("validation");
  if (validation > account.peak_bytes / 100)
    consumers.push_back({"validation", validation, "data.validation: [] drops it"});
  consumers.push_back({"code, libraries, data, staging and threads",
                       account.beside_step() - validation, "of any run of this model"});
  return consumers;
}

// A run config whose plans leave no traces.
RunConfig quiet(RunConfig run) {
  run.compiler.dump.clear();
  run.compiler.explain_dispatch = false;
  return run;
}

}  // namespace

SmallestBudget search_smallest_budget(std::int64_t guess, std::int64_t most,
                                      const std::function<bool(int)>& may_try,
                                      const std::function<bool(std::int64_t)>& holds) {
  const auto share = [](double part, std::int64_t bytes) {
    return static_cast<std::int64_t>(std::ceil(part * static_cast<double>(bytes)));
  };
  int trials = 0;
  std::int64_t bytes = std::clamp<std::int64_t>(guess, 1, most);
  for (double step = kStep / 4; bytes < most; step *= 2) {
    if (!may_try(trials)) bytes = most;
    if (bytes == most || (++trials, holds(bytes))) break;
    bytes = std::min(most, bytes + share(step, bytes));
  }
  for (double step = kStep; may_try(trials); ++trials) {
    const std::int64_t less = bytes - share(step, bytes);
    if (less > 0 && holds(less)) {
      bytes = less;
      step = std::min(2 * step, 0.5);
    } else if (step > kStep) {
      step = kStep;
    } else {
      return {bytes, true};
    }
  }
  return {bytes, false};
}

namespace {

// A budget that will hardly do, by the leanest plan of the step alone.
std::int64_t lean_guess(const RunConfig& run, const model::ModelConfig& config,
                        const Machine& machine, std::int64_t beside_step) {
  const plan::Outcome<RunPlan> lean =
      plan_run(run, config, machine.device, machine.efficiency, {.bytes = 1});
  return beside_step + (lean ? lean->training.plan.peak_bytes() : lean.refusal().smallest_bytes);
}

// "got 1800MB", or how much is available with memory.budget: auto.
std::string budget_text(const RunConfig& run, bool is_auto) {
  return is_auto ? fmt::format("available are {}, the limit of memory.budget: auto",
                               format_bytes(run.memory.budget))
                 : fmt::format("got {}", in_unit(run, run.memory.budget));
}

// The refusal of a plan, in terms of the whole process.
plan::Refusal refusal_of(const RunConfig& run, const model::ModelConfig& config,
                         const Machine& machine, bool is_auto, const plan::Refusal& refusal) {
  if (!machine.limits.finds_smallest)
    return {.reason = fmt::format("[memory] memory.budget: expected one that some plan fits, {}",
                                  budget_text(run, is_auto)),
            .smallest_bytes = refusal.smallest_bytes,
            .consumers = refusal.consumers,
            .unit = run.memory.budget_unit};
  RunConfig trial = quiet(run);
  trial.memory.budget = 0;
  const RunPlan whole = *plan_run(trial, config, machine.device, machine.efficiency);
  const MemoryAccount account = account_of(trial, whole, machine);
  if (trial.memory.optimizer_state == "auto" &&
      find_swap_place(run).free_bytes < account.bytes("optimizer state"))
    trial.memory.optimizer_state = "resident";  // no budget has the disk hold it
  const auto holds = [&](std::int64_t budget) {
    trial.memory.budget = budget;
    return bool(plan_within_budget(trial, config, machine.device, machine.efficiency,
                                   machine.limits.process_bytes, &whole));
  };
  const int num_nodes = static_cast<int>(whole.training.graph.nodes.size());
  const int most_trials = std::clamp(kTriedNodes / num_nodes, kFewestTrials, kMostTrials);
  const auto may_try = [=](int trials) { return trials < most_trials; };
  const SmallestBudget smallest =
      search_smallest_budget(lean_guess(trial, config, machine, account.beside_step()),
                             account.peak_bytes, may_try, holds);
  return {.reason = fmt::format("[memory] memory.budget: this run needs {}{}, {}",
                                text_that_holds(run, smallest.bytes, holds),
                                smallest.is_smallest ? "" : " or less", budget_text(run, is_auto)),
          .smallest_bytes = smallest.bytes,
          .consumers = consumers_of(run, refusal, account),
          .unit = run.memory.budget_unit};
}

plan::Outcome<BudgetedRun> replay(const RunConfig& run, const model::ModelConfig& config,
                                  const Machine& machine, std::int64_t budget) {
  const PlanFile file = read_plan_file(run.memory.plan);
  require_same_step(file, step_identity(run, config, machine.device), run.memory.plan);
  BudgetedRun result{.note = fmt::format("choices of {}", run.memory.plan)};
  result.plan =
      *plan_run(run, config, machine.device, machine.efficiency, {.replay = &file.decisions});
  result.memory = account_of(run, result.plan, machine);
  require_same_tiers(file, result.plan.training, run.memory.plan);
  if (budget > 0 && result.memory.peak_bytes > budget)
    return plan::Refusal{
        .reason = fmt::format("[memory] memory.budget: the choices of {} need {}, got {}; without "
                              "memory.plan the planner makes its own choices",
                              run.memory.plan, in_unit(run, result.memory.peak_bytes),
                              in_unit(run, budget)),
        .smallest_bytes = result.memory.peak_bytes};
  if (plan_hash(result.plan.training) != file.plan_hash)
    result.note += fmt::format(
        ", planned to {} instead of {}: the file was edited, or comes from another version or "
        "other CPU caches",
        format_bytes(result.plan.training.plan.peak_bytes()), format_bytes(file.step_bytes));
  return result;
}

// Where experts are shared and the budget has no room for the most rows that can come: as much room
// as it has without another choice, else the least, with what other choices it takes.
plan::Outcome<RunPlan> plan_with_room(RunConfig run, const model::ModelConfig& config,
                                      const Machine& machine) {
  const auto plan_now = [&] {
    return plan_within_budget(run, config, machine.device, machine.efficiency,
                              machine.limits.process_bytes);
  };
  plan::Outcome<RunPlan> plan = plan_now();
  const bool is_whole = plan && plan->step_bytes == 0;
  if (is_whole || run.memory.budget <= 0 || run.parallel.expert == 1 ||
      run.parallel.expert_capacity != RunConfig::Parallel::kFitting)
    return plan;
  for (const double capacity : kRooms) {
    run.parallel.expert_capacity = capacity;
    plan = plan_now();
    if (plan && plan->step_bytes == 0) break;
  }
  return plan;
}

plan::Outcome<BudgetedRun> plan_quietly(const RunConfig& run, const model::ModelConfig& config,
                                        const Machine& machine) {
  RunConfig asked = quiet(run);
  const bool is_auto = run.memory.budget == RunConfig::Memory::kAvailable;
  // Nothing may say how much there is; then the sum would not fit.
  constexpr std::int64_t kLargest = std::int64_t{1} << 60;
  if (is_auto)
    asked.memory.budget =
        machine.limits.available_bytes > 0 && machine.limits.available_bytes < kLargest
            ? machine.limits.available_bytes + machine.limits.process_bytes
            : 0;
  if (!run.memory.plan.empty()) return replay(asked, config, machine, asked.memory.budget);
  plan::Outcome<RunPlan> plan = plan_with_room(asked, config, machine);
  if (!plan) return refusal_of(asked, config, machine, is_auto, plan.refusal());
  BudgetedRun result{.plan = *std::move(plan)};
  result.memory = account_of(asked, result.plan, machine);
  if (is_auto && result.plan.step_bytes > 0)
    result.note = fmt::format(
        "the fastest plan does not fit into the available memory, {}; this one does "
        "(memory.budget: none takes the fastest anyway)",
        format_bytes(asked.memory.budget));
  const double capacity = result.plan.training.memory.decisions.expert_capacity;
  if (capacity > 0 && run.parallel.expert_capacity == RunConfig::Parallel::kFitting)
    result.note += fmt::format(
        "{}room for {:g} times an even share of the rows that come to experts, as the budget has "
        "none for the most that can come",
        result.note.empty() ? "" : "; ", capacity);
  return result;
}

void warn_of_idle_kernels(const RunConfig& run, const RunPlan& plan) {
  std::vector<const ir::Graph*> graphs{&plan.training.graph};
  if (plan.evaluation) graphs.push_back(&plan.evaluation->graph);
  plugin::plugin_set(run.model.plugins).warn_of_idle_kernels(graphs);
}

}  // namespace

plan::Outcome<BudgetedRun> plan_as_asked(const RunConfig& run, const model::ModelConfig& config,
                                         const Machine& machine) {
  plan::Outcome<BudgetedRun> result = plan_quietly(run, config, machine);
  // Dumps are of what was chosen, not of what was tried on the way: of its replay.
  if (result && (!run.compiler.dump.empty() || run.compiler.explain_dispatch))
    (void)plan_run(run, config, machine.device, machine.efficiency,
                   {.replay = &result->plan.training.memory.decisions});
  if (result) warn_of_idle_kernels(run, result->plan);
  return result;
}

}  // namespace anabatic::train
