// SPDX-License-Identifier: Apache-2.0
#include "train/api/plan_summary.h"

#include "plan/choice_id.h"
#include "train/run_plan.h"
#include "train/sparsity/sparse_weights.h"

namespace anabatic::train {

PlanSummary summarize(const RunConfig& run, const lower::Compiled& training,
                      const MemoryAccount& memory, const plan::StepPrice& price,
                      const std::string& price_source) {
  std::string text = to_string(memory);
  if (const std::string choices = plan::to_string(training.memory); !choices.empty())
    text += fmt::format("not kept for the backward, but recomputed, compressed or on disk:\n{}",
                        choices);
  const std::string disk = disk_to_string(run, training, price);
  if (!disk.empty()) text += fmt::format("on disk: {}\n", disk);
  for (const std::string& line : sparsity_lines(training.graph, run))
    text += fmt::format("sparsity: {}\n", line);
  text += fmt::format("step: predicted {:.3g} s ({})\n", price.seconds, price_source);
  return {.peak_memory_bytes = memory.peak_bytes,
          .memory = shares(memory),
          .num_choices = static_cast<std::int64_t>(training.memory.choices.size()),
          .disk = disk,
          .step_seconds = price.seconds,
          .price_source = price_source,
          .text = std::move(text)};
}

std::vector<PlannedChoice> planned_choices(const lower::Compiled& training) {
  std::vector<PlannedChoice> choices;
  for (const plan::PricedChoice& choice : training.memory.choices)
    choices.push_back({.value = choice.name,
                       .form = std::string(plan::to_string(choice.way)),
                       .seconds = choice.seconds});
  return choices;
}

}  // namespace anabatic::train
