// SPDX-License-Identifier: Apache-2.0
#include "train/budget.h"

#include <algorithm>
#include <cmath>

#include "base/error.h"
#include "base/text.h"
#include "train/plan_file.h"
#include "train/swap_tier.h"

namespace anabatic::train {
namespace {

// Plans that a search for the smallest budget may make: fewer of a large model, whose plan takes a
// part of a second, by its nodes. The number of plans is no matter of time: a refusal names the
// same budget on a busy machine.
constexpr int kMostTrials = 10, kFewestTrials = 3, kTriedNodes = 30'000;
constexpr double kStep = 0.02;

MemoryAccount account_of(const RunConfig& run, const RunPlan& plan, const spec::DeviceSpec& device,
                         const BudgetLimits& limits) {
  return account_memory(run, plan.training, plan.evaluation ? &*plan.evaluation : nullptr,
                        device.num_threads, limits.process_bytes, limits.data_bytes);
}

// As format_bytes, rounded up in its last digit: a budget of this text is no smaller.
std::string rounded_up(std::int64_t bytes) {
  std::int64_t unit = 1;
  while (bytes / unit >= 1024) unit *= 1024;
  return format_bytes(unit == 1 ? bytes : bytes + unit / 200 + 1);
}

// What is said must do too, a little more though it is, and a plan may not keep every budget above
// the smallest.
std::string text_that_holds(std::int64_t bytes, const std::function<bool(std::int64_t)>& holds) {
  for (const std::int64_t more : {bytes, bytes + bytes / 200})
    if (const std::string text = rounded_up(more); holds(parse_bytes(text).value_or(0)))
      return text;
  return std::to_string(bytes);
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
                        const spec::DeviceSpec& device, const plan::OpEfficiency& efficiency,
                        std::int64_t beside_step) {
  try {
    return plan_run(run, config, device, efficiency, {.bytes = 1}).training.plan.peak_bytes() +
           beside_step;
  } catch (const plan::BudgetError& error) {
    return error.smallest_bytes() + beside_step;
  }
}

[[noreturn]] void refuse(const RunConfig& run, const model::ModelConfig& config,
                         const spec::DeviceSpec& device, const plan::OpEfficiency& efficiency,
                         const BudgetLimits& limits, const std::string& note,
                         const plan::BudgetError& error) {
  const std::string lead = note.empty() ? "" : note + "; ";
  if (!limits.finds_smallest) throw plan::BudgetError(lead + error.what());
  RunConfig trial = quiet(run);
  trial.memory.budget = 0;
  const RunPlan whole = plan_run(trial, config, device, efficiency);
  const MemoryAccount account = account_of(trial, whole, device, limits);
  if (trial.memory.optimizer_state == "auto" &&
      find_swap_place(run).free_bytes < account.bytes("optimizer state"))
    trial.memory.optimizer_state = "resident";  // no budget has the disk hold it
  const auto holds = [&](std::int64_t budget) {
    trial.memory.budget = budget;
    try {
      plan_within_budget(trial, config, device, efficiency, limits.process_bytes, &whole);
      return true;
    } catch (const plan::BudgetError&) {
      return false;
    }
  };
  const int num_nodes = static_cast<int>(whole.training.graph.nodes.size());
  const int most_trials = std::clamp(kTriedNodes / num_nodes, kFewestTrials, kMostTrials);
  const auto may_try = [=](int trials) { return trials < most_trials; };
  const SmallestBudget smallest =
      search_smallest_budget(lean_guess(trial, config, device, efficiency, account.beside_step()),
                             account.peak_bytes, may_try, holds);
  throw plan::BudgetError(
      fmt::format("{}{}; the smallest memory.budget that would do is {}{}", lead, error.what(),
                  text_that_holds(smallest.bytes, holds), smallest.is_smallest ? "" : " or less"),
      smallest.bytes);
}

BudgetedRun replay(const RunConfig& run, const model::ModelConfig& config,
                   const spec::DeviceSpec& device, const plan::OpEfficiency& efficiency,
                   std::int64_t budget, const BudgetLimits& limits) {
  const PlanFile file = read_plan_file(run.memory.plan);
  require_same_step(file, step_identity(run, config, device), run.memory.plan);
  BudgetedRun result{.note = fmt::format("choices of {}", run.memory.plan)};
  result.plan = plan_run(run, config, device, efficiency, {.replay = &file.decisions});
  result.memory = account_of(run, result.plan, device, limits);
  require_same_tiers(file, result.plan.training, run.memory.plan);
  if (budget > 0 && result.memory.peak_bytes > budget)
    throw plan::BudgetError(
        fmt::format("[memory] expected a saved plan of at most {}, got {} for that of {}: {} more",
                    format_bytes(budget), format_bytes(result.memory.peak_bytes), run.memory.plan,
                    format_bytes(result.memory.peak_bytes - budget)),
        result.memory.peak_bytes);
  if (plan_hash(result.plan.training) != file.plan_hash)
    result.note += fmt::format(
        ", planned to {} where it had {}: edited, by another version of the engine, or for other "
        "caches",
        format_bytes(result.plan.training.plan.peak_bytes()), format_bytes(file.step_bytes));
  return result;
}

}  // namespace

namespace {

BudgetedRun plan_quietly(const RunConfig& run, const model::ModelConfig& config,
                         const spec::DeviceSpec& device, const plan::OpEfficiency& efficiency,
                         const BudgetLimits& limits) {
  RunConfig asked = quiet(run);
  const bool is_auto = run.memory.budget == RunConfig::Memory::kAvailable;
  // Nothing may say how much there is; then the sum would not fit.
  constexpr std::int64_t kLargest = std::int64_t{1} << 60;
  if (is_auto)
    asked.memory.budget = limits.available_bytes > 0 && limits.available_bytes < kLargest
                              ? limits.available_bytes + limits.process_bytes
                              : 0;
  if (!run.memory.plan.empty())
    return replay(asked, config, device, efficiency, asked.memory.budget, limits);
  BudgetedRun result;
  try {
    result.plan = plan_within_budget(asked, config, device, efficiency, limits.process_bytes);
  } catch (const plan::BudgetError& error) {
    refuse(asked, config, device, efficiency, limits,
           is_auto ? fmt::format("without a memory.budget, a run keeps to what is available, {}",
                                 format_bytes(asked.memory.budget))
                   : "",
           error);
  }
  result.memory = account_of(asked, result.plan, device, limits);
  if (is_auto && result.plan.step_bytes > 0)
    result.note = fmt::format(
        "the fastest plan does not fit into what is available, {}; this one "
        "does (memory.budget: none plans regardless)",
        format_bytes(asked.memory.budget));
  return result;
}

}  // namespace

BudgetedRun plan_as_asked(const RunConfig& run, const model::ModelConfig& config,
                          const spec::DeviceSpec& device, const plan::OpEfficiency& efficiency,
                          const BudgetLimits& limits) {
  BudgetedRun result = plan_quietly(run, config, device, efficiency, limits);
  // Dumps are of what was chosen, not of what was tried on the way: of its replay.
  if (!run.compiler.dump.empty() || run.compiler.explain_dispatch)
    plan_run(run, config, device, efficiency, {.replay = &result.plan.training.memory.decisions});
  return result;
}

}  // namespace anabatic::train
