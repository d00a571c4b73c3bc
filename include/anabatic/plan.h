// SPDX-License-Identifier: Apache-2.0
// What a training step will take, without running it: from config.json alone, allocating nothing.
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

// A value of the step that is not kept for the backward as it is.
struct PlannedChoice {
  std::string value;   // "layers.3.experts.gate", "layers.3.attention"
  std::string form;    // "recompute", "bf16", "int8", "disk", "slices"
  double seconds = 0;  // that it adds to a micro-batch
};

struct PlannedStep {
  PlanSummary summary;
  std::vector<PlannedChoice> choices;  // in the order of the model; empty: everything is kept
  std::int64_t disk_bytes = 0;         // that the run will write scratch files of
};

// A part of what a step takes, and the settings that would shrink it.
struct Consumer {
  std::string name;
  std::int64_t bytes = 0;  // 0: a remark, such as why a remedy is not open
  std::string remedy;      // "": none
};

// memory.budget cannot be kept.
struct Refusal {
  std::string reason;               // one line
  std::int64_t smallest_bytes = 0;  // of a memory.budget that can; 0: unknown
  std::vector<Consumer> consumers;
  std::string text;  // all of it, for people
};

using PlanOutcome = std::variant<PlannedStep, Refusal>;

// InvalidArgument lists every problem of the config. Where memory.budget is auto or none, the plan
// is the fastest one, whatever this machine has.
ANABATIC_API PlanOutcome plan_step(const Config& config);
// From text. Settings win over the YAML file, when one is given.
ANABATIC_API PlanOutcome plan_step(const Settings& settings, const std::string& yaml_file = "");

// Thrown by Engine::train() and by Session where memory.budget cannot be kept: before the first
// step, and with nothing taken.
class ANABATIC_API BudgetError : public ResourceError {
 public:
  explicit BudgetError(Refusal refusal)
      : ResourceError(refusal.text), refusal_(std::move(refusal)) {}
  const Refusal& refusal() const { return refusal_; }

 private:
  Refusal refusal_;
};

}  // namespace anabatic
