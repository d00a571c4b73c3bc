// SPDX-License-Identifier: Apache-2.0
#include "lower/choose_memory.h"

#include <fmt/core.h>

#include <algorithm>
#include <optional>
#include <vector>

#include "base/error.h"
#include "base/text.h"
#include "plan/first_micro_batch.h"
#include "plan/largest_consumers.h"
#include "plan/memory_decider.h"
#include "plan/memory_menu.h"
#include "plan/prices.h"

namespace anabatic::lower {
namespace {

// A plan may need a little more than the simulated timeline says; its frame is asked for anew, less
// by what it was too large, then by twice that, and so on, and never by less than before.
constexpr int kMostAttempts = 6;

// A first micro-batch whose values did not fit among gradients is asked for by this share of the
// bytes less, then by twice that, and so on.
constexpr std::int64_t kFirstShares = 32;
constexpr int kMostFirstAttempts = 5;

// Plans that look whether what is left then holds some choices after all.
constexpr int kMostReturns = 4;

// Choices, at most that many, whose bytes fit between the plan's peak and the budget.
std::vector<plan::PricedChoice> room_for(const plan::MemoryDecider& decider,
                                         std::int64_t budget_bytes, const Compiled& result,
                                         std::size_t most) {
  std::vector<plan::PricedChoice> choices = result.memory.choices;
  std::stable_sort(choices.begin(), choices.end(), [](const auto& a, const auto& b) {
    return a.seconds * static_cast<double>(b.bytes) > b.seconds * static_cast<double>(a.bytes);
  });
  std::int64_t room = budget_bytes - result.plan.peak_bytes();
  std::vector<plan::PricedChoice> fitting;
  for (const plan::PricedChoice& choice : choices) {
    if (fitting.size() == most || choice.bytes > room || decider.is_hinted(choice)) continue;
    fitting.push_back(choice);
    room -= choice.bytes;
  }
  return fitting;
}

// The timeline was asked for less than the budget, so that the plan keeps it; what the plan then
// has room for need not be made again. The dearest for its bytes comes first.
void keep_again(const Attempt& attempt, const plan::MemoryDecider& decider, const ir::Graph& whole,
                std::int64_t frame_bytes, Compiled& result) {
  if (attempt.options().memory.replay) return;
  std::size_t most = result.memory.choices.size();
  for (int tries = 0; tries < kMostReturns; ++tries) {
    const std::vector<plan::PricedChoice> choices =
        room_for(decider, attempt.budget_bytes(), result, most);
    if (choices.empty()) return;
    Compiled fewer = result;
    attempt.take(decider.without(result.memory, choices, frame_bytes), whole, fewer);
    if (fewer.plan.peak_bytes() <= attempt.budget_bytes() &&
        fewer.memory.added_seconds <= result.memory.added_seconds)
      result = std::move(fewer);
    else
      most = choices.size() / 2;
  }
}

[[noreturn]] void refuse(const Attempt& attempt, const Compiled& result, std::int64_t smallest) {
  const CompileOptions& options = attempt.options();
  std::vector<plan::Consumer> consumers = plan::largest_consumers(result.graph, result.plan);
  if (!options.disk_choice.refusal.empty())
    consumers.push_back({"the optimizer's state on disk", 0, options.disk_choice.refusal});
  throw plan::BudgetError(fmt::format("[memory] expected a step of at most {}, got {} at the least",
                                      format_bytes(attempt.budget_bytes()), format_bytes(smallest)),
                          smallest + options.memory.budget_bytes - attempt.budget_bytes(),
                          std::move(consumers));
}

}  // namespace

void choose_memory(const Attempt& attempt, Compiled& result) {
  const CompileOptions& options = attempt.options();
  const std::int64_t budget = attempt.budget_bytes(),
                     beside_frame = result.plan.peak_bytes() - result.plan.frame_bytes;
  if (budget > 0 && beside_frame >= budget && attempt.has_another_way())
    throw plan::BudgetError(
        fmt::format("[memory] expected a step of at most {}, got {} beside what may be chosen",
                    format_bytes(budget), format_bytes(beside_frame)),
        beside_frame);
  const ir::Graph whole = result.graph;
  const plan::Plan whole_plan = result.plan;
  const spec::DeviceSpec priced = plan::with_peaks(attempt.device());
  const plan::MemoryMenu menu(whole, whole_plan, priced, options.efficiency,
                              options.memory.compression, options.memory.offload);
  const plan::MemoryDecider decider(menu, options.memory);
  std::int64_t frame_bytes = whole_plan.frame_bytes;
  std::int64_t smallest = whole_plan.peak_bytes();
  if (budget > 0) frame_bytes -= std::max<std::int64_t>(whole_plan.peak_bytes() - budget, 0);
  std::int64_t less = 0;
  std::optional<plan::MemoryDecision> last;
  for (int tries = 0;; ++tries) {
    plan::MemoryDecision decision = decider.decide_cheapest(frame_bytes, last ? &*last : nullptr);
    if (tries == 0 && decision.choices.empty())
      result.memory = std::move(decision);  // the plan that keeps everything stands
    else
      attempt.take(std::move(decision), whole, result);
    const std::int64_t excess = result.plan.peak_bytes() - budget;
    smallest = std::min(smallest, result.plan.peak_bytes());
    if (budget > 0 && excess <= 0) keep_again(attempt, decider, whole, frame_bytes, result);
    if (budget == 0 || excess <= 0) return;
    less = std::max(less, excess << tries);
    if (!result.memory.holds || tries + 1 == kMostAttempts || frame_bytes <= less)
      refuse(attempt, result, smallest);
    frame_bytes -= less;
    last = result.memory;
  }
}

void choose_first_memory(const Attempt& attempt, const ir::Graph& whole,
                         const plan::Plan& whole_plan, Compiled& result) {
  const CompileOptions& options = attempt.options();
  const bool may = has_update(options) && options.micro_batches > 1 && !options.trivial_planners &&
                   !options.optimizer.in_backward && !result.memory.choices.empty() &&
                   whole_plan.windows.empty() && whole_plan.offloads.empty() &&
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
  const plan::Plan timeline = plan::with_gradients_in_frame(whole_plan);
  const spec::DeviceSpec priced = plan::with_peaks(attempt.device());
  const plan::MemoryMenu menu(whole, timeline, priced, options.efficiency, memory.compression,
                              memory.offload);
  const plan::MemoryDecider decider(menu, memory);
  const std::int64_t room = result.plan.frame_bytes + result.plan.gradient_bytes;
  for (int tries = 0; tries < kMostFirstAttempts; ++tries) {
    const std::int64_t less = tries == 0 ? 0 : room / kFirstShares << (tries - 1);
    plan::MemoryDecision decision = decider.decide(room - less);
    const bool is_better = decision.holds && decision.added_seconds < result.memory.added_seconds;
    if (!is_better && !memory.replay) return;
    Compiled first;
    first.graph = whole;
    first.plan = whole_plan;
    if (!decision.choices.empty()) attempt.take(std::move(decision), whole, first);
    auto plan = plan::plan_among_gradients(first.graph, first.plan, result.plan.frame_bytes);
    if (!plan) continue;
    result.first = {std::move(first.graph), std::move(*plan)};
    result.memory.decisions.first = first.memory.decisions;
    result.memory.first_choices = std::move(first.memory.choices);
    result.memory.first_added_seconds = first.memory.added_seconds;
    return;
  }
  ANABATIC_REQUIRE(!memory.replay,
                   "[memory] the saved plan's first micro-batch keeps more than "
                   "this run has room for");
}

}  // namespace anabatic::lower
