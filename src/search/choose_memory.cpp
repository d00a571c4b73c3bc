// SPDX-License-Identifier: Apache-2.0
#include "search/choose_memory.h"

#include <fmt/core.h>

#include <algorithm>
#include <optional>
#include <vector>

#include "base/error.h"
#include "base/text.h"
#include "passes/decided/activation_with_gradient.h"
#include "passes/decided/quantize_in_product.h"
#include "passes/decided/read_quantized.h"
#include "plan/first_micro_batch.h"
#include "plan/largest_consumers.h"
#include "plan/memory_decider.h"
#include "plan/memory_menu.h"
#include "plan/prices.h"
#include "search/fit.h"

namespace anabatic::search {
namespace {

// A plan may need a little more than the simulated timeline says: its frame is then asked for
// again.
constexpr int kMostAttempts = 6;

// A first micro-batch whose values did not fit among gradients is taken to be too large by this
// share of the bytes.
constexpr std::int64_t kFirstShares = 32;
constexpr int kMostFirstAttempts = 5;

// Plans that look whether what is left then holds some choices after all.
constexpr int kMostReturnedChoices = 4;

// Choices, at most that many, whose bytes fit between the plan's peak and the budget.
std::vector<plan::PricedChoice> room_for(const plan::MemoryDecider& decider,
                                         std::int64_t budget_bytes, const PlannedStep& step,
                                         std::size_t most) {
  std::vector<plan::PricedChoice> choices = step.memory.choices;
  std::stable_sort(choices.begin(), choices.end(), [](const auto& a, const auto& b) {
    return a.seconds * static_cast<double>(b.bytes) > b.seconds * static_cast<double>(a.bytes);
  });
  std::int64_t room = budget_bytes - step.plan.peak_bytes();
  std::vector<plan::PricedChoice> fitting;
  for (const plan::PricedChoice& choice : choices) {
    if (fitting.size() == most || choice.bytes > room || decider.is_hinted(choice)) continue;
    fitting.push_back(choice);
    room -= choice.bytes;
  }
  return fitting;
}

// The timeline was asked for less than the budget, so that the plan fits it. Values for which the
// plan then has room need not be recomputed. The most expensive for its bytes comes first.
void keep_again(const Candidate& candidate, const plan::MemoryDecider& decider,
                const PlannedStep& whole, std::int64_t frame_bytes, PlannedStep& step) {
  if (candidate.options().memory.replay) return;
  const std::int64_t budget = candidate.budget_bytes();
  std::size_t most = step.memory.choices.size();
  for (int tries = 0; tries < kMostReturnedChoices; ++tries) {
    const std::vector<plan::PricedChoice> choices = room_for(decider, budget, step, most);
    if (choices.empty()) return;
    PlannedStep fewer =
        candidate.step_of(decider.without(step.memory, choices, frame_bytes), whole);
    if (fewer.plan.peak_bytes() <= budget &&
        fewer.memory.added_seconds <= step.memory.added_seconds)
      step = std::move(fewer);
    else
      most = choices.size() / 2;
  }
}

// What the planner may foresee of the passes after recompute.
analysis::ProductFusions fusions_of(const CompileOptions& options) {
  const auto runs = [&](const passes::Pass& pass) {
    return !options.disabled_passes.contains(pass.name);
  };
  return {.quantize_in_product = runs(passes::kQuantizeInProduct),
          .activation_with_gradient = runs(passes::kActivationWithGradient),
          .read_quantized = runs(passes::kReadQuantized)};
}

plan::Refusal refusal_of(const Candidate& candidate, const PlannedStep& leanest,
                         std::int64_t smallest) {
  const CompileOptions& options = candidate.options();
  plan::Refusal refusal{
      .reason = fmt::format("[memory] expected a step of at most {}, got {} at the least",
                            format_bytes(candidate.budget_bytes()), format_bytes(smallest)),
      .smallest_bytes = smallest + options.memory.budget_bytes - candidate.budget_bytes(),
      .consumers = plan::largest_consumers(leanest.graph, leanest.plan)};
  if (!options.disk_choice.refusal.empty())
    refusal.consumers.push_back({"the optimizer's state on disk", 0, options.disk_choice.refusal});
  return refusal;
}

Outcome step_within_budget(const Candidate& candidate, const PlannedStep& whole) {
  const CompileOptions& options = candidate.options();
  const std::int64_t budget = candidate.budget_bytes(),
                     beside_frame = whole.plan.peak_bytes() - whole.plan.frame_bytes;
  if (budget > 0 && beside_frame >= budget && candidate.has_another_way(whole.graph))
    return plan::Refusal{
        .reason =
            fmt::format("[memory] expected a step of at most {}, got {} that no choice can reduce",
                        format_bytes(budget), format_bytes(beside_frame)),
        .smallest_bytes = beside_frame};
  const spec::DeviceSpec priced = plan::with_peaks(candidate.device());
  const plan::MemoryMenu menu(whole.graph, whole.plan, priced, options.efficiency,
                              options.memory.compression, options.memory.offload,
                              fusions_of(options));
  const plan::MemoryDecider decider(menu, options.memory);
  std::optional<PlannedStep> step;
  std::int64_t smallest = whole.plan.peak_bytes();
  const auto ask = [&](std::int64_t frame_bytes) -> std::optional<Answer> {
    step = candidate.step_of(decider.decide_cheapest(frame_bytes, step ? &step->memory : nullptr),
                             whole);
    if (budget == 0) return Answer{};
    smallest = std::min(smallest, step->plan.peak_bytes());
    const std::int64_t excess = step->plan.peak_bytes() - budget;
    if (excess > 0 && !step->memory.holds) return std::nullopt;
    if (excess <= 0) keep_again(candidate, decider, whole, frame_bytes, *step);
    return Answer{.excess = excess};
  };
  const std::int64_t excess = budget > 0 ? whole.plan.peak_bytes() - budget : 0;
  if (!fit(whole.plan.frame_bytes - std::max<std::int64_t>(excess, 0), kMostAttempts, ask)) {
    // The simulation may count more than a plan takes. So the leanest choice is planned before a
    // budget is refused: whatever fits a budget fits a larger one.
    const std::optional<Answer> leanest = ask(0);
    if (!leanest || leanest->excess > 0) return refusal_of(candidate, *step, smallest);
  }
  return *std::move(step);
}

void choose_first_micro_batch(const Candidate& candidate, const PlannedStep& whole,
                              PlannedStep& step) {
  const CompileOptions& options = candidate.options();
  const bool may = has_update(options) && options.micro_batches > 1 && !options.trivial_planners &&
                   !options.optimizer.in_backward && !step.memory.choices.empty() &&
                   whole.plan.windows.empty() && whole.plan.offloads.empty() &&
                   options.memory.offload.cold.empty();
  plan::MemoryOptions memory = options.memory;
  memory.offload = {};
  if (memory.replay) {
    if (!memory.replay->first) return;
    ANABATIC_REQUIRE(may,
                     "[memory] expected a saved plan whose first micro-batch is like the "
                     "others, as this run's is");
    static_cast<spec::MicroBatchDecisions&>(*memory.replay) = *memory.replay->first;
  } else if (!may) {
    return;
  }
  const plan::Plan timeline = plan::with_gradients_in_frame(whole.plan);
  const spec::DeviceSpec priced = plan::with_peaks(candidate.device());
  const plan::MemoryMenu menu(whole.graph, timeline, priced, options.efficiency, memory.compression,
                              memory.offload, fusions_of(options));
  const plan::MemoryDecider decider(menu, memory);
  const std::int64_t room = step.plan.frame_bytes + step.plan.gradient_bytes;
  const auto ask = [&](std::int64_t bytes) -> std::optional<Answer> {
    plan::MemoryDecision decision = decider.decide(bytes);
    const bool is_better = decision.holds && decision.added_seconds < step.memory.added_seconds;
    if (!is_better && !memory.replay) return std::nullopt;
    PlannedStep first = candidate.step_of(std::move(decision), whole);
    auto plan = plan::plan_among_gradients(first.graph, first.plan, step.plan.frame_bytes);
    if (!plan) return Answer{.excess = std::max<std::int64_t>(room / kFirstShares, 1)};
    step.first = {std::move(first.graph), std::move(*plan)};
    step.memory.decisions.first = first.memory.decisions;
    step.memory.first_choices = std::move(first.memory.choices);
    step.memory.first_added_seconds = first.memory.added_seconds;
    return Answer{};
  };
  const bool fits = fit(room, kMostFirstAttempts, ask);
  ANABATIC_REQUIRE(fits || !memory.replay,
                   "[memory] the saved plan's first micro-batch keeps more than "
                   "this run has room for");
}

}  // namespace

Outcome choose_memory(const Candidate& candidate, const PlannedStep& whole) {
  Outcome result = step_within_budget(candidate, whole);
  if (!result) return result;
  ir::verify(result->graph);
  choose_first_micro_batch(candidate, whole, *result);
  return result;
}

}  // namespace anabatic::search
