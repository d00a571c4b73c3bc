// SPDX-License-Identifier: Apache-2.0
// Predicts memory and time of a training step from config.json alone, without allocating or
// running.
//
//   anabatic::Config config;
//   config.model.path = "config.json";
//   config.memory.budget = 2'000'000'000;
//   const anabatic::PlanOutcome outcome = anabatic::plan_step(config);
//   if (const auto* refusal = std::get_if<anabatic::Refusal>(&outcome))
//     std::printf("needs at least %ld bytes\n", refusal->smallest_bytes);
#pragma once
#include <cstdint>
#include <string>
#include <variant>
#include <vector>

#include "anabatic/engine.h"
#include "anabatic/error.h"

namespace anabatic {

// A value of the step that is recomputed, compressed, offloaded or sliced instead of kept.
struct PlannedChoice {
  std::string value;   // "layers.3.experts.gate", "layers.3.attention"
  std::string form;    // "recompute", "bf16", "int8", "disk", "slices"
  double seconds = 0;  // added to a micro-batch
};

struct PlannedStep {
  PlanSummary summary;
  std::vector<PlannedChoice> choices;  // in the order of the model; empty if everything is kept
  std::int64_t disk_bytes = 0;         // size of the scratch file
};

// One use of memory in a step, and the settings that would shrink it.
struct Consumer {
  std::string name;
  std::int64_t bytes = 0;  // 0: a remark, such as why a remedy is not available
  std::string remedy;      // empty if there is none
};

// No plan fits memory.budget.
struct Refusal {
  std::string reason;               // one line
  std::int64_t smallest_bytes = 0;  // smallest memory.budget that is enough; 0: unknown
  std::vector<Consumer> consumers;
  std::string text;  // the whole message, for people
};

using PlanOutcome = std::variant<PlannedStep, Refusal>;

// InvalidArgument lists every problem of the config. If memory.budget is auto or none, the plan is
// the fastest one, even if it does not fit this machine.
ANABATIC_API PlanOutcome plan_step(const Config& config);
// From text. `settings` override the YAML file, if there is one.
ANABATIC_API PlanOutcome plan_step(const Settings& settings, const std::string& yaml_file = "");

// Thrown by Engine::train() and by Session if no plan fits memory.budget. It is thrown before the
// first step, and before anything is allocated.
class ANABATIC_API BudgetError : public ResourceError {
 public:
  explicit BudgetError(Refusal refusal)
      : ResourceError(refusal.text), refusal_(std::move(refusal)) {}
  const Refusal& refusal() const { return refusal_; }

 private:
  Refusal refusal_;
};

}  // namespace anabatic
