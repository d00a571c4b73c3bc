// SPDX-License-Identifier: Apache-2.0
// What `anabatic plan MODEL` computes and prints.
#pragma once
#include <string>
#include <vector>

#include "plan/outcome.h"
#include "train/memory_account.h"
#include "train/plan_file.h"
#include "train/ranks/planned_exchanges.h"
#include "train/run_plan.h"
#include "train/settings_search.h"

namespace anabatic::cli {

struct ModelPlan {
  train::RunConfig run;
  model::ModelConfig config;
  spec::DeviceSpec device;  // with peaks
  train::RunPlan plan;
  std::string note;  // why this plan was chosen (train/budget.h)
  train::MemoryAccount memory;
  plan::StepPrice price;
  spec::Mesh mesh;  // of the run; plan and price are of one rank, and so is the memory of a process
  std::vector<train::PlannedExchange> exchanges;
  double model_flops = 0;       // of a step on all ranks, without recomputed work
  double planning_seconds = 0;  // of graphs, passes, plans and accounts
  std::string price_source;
  std::int64_t available_bytes = 0;  // to this process, with what it holds; train's budget `auto`

  std::int64_t tokens() const;  // a step, on all ranks
};

// Plans `run`, whose model.path names a config.json or its directory. Without a memory.budget:
// regardless of what this machine has. `finds_smallest` as in train/budget.h.
plan::Outcome<ModelPlan> plan_model(train::RunConfig run, bool finds_smallest = true);

// The file that `--save` writes and `--diff` compares.
train::PlanFile plan_file(const ModelPlan& planned);

// The settings of `run` that fit into `budget_bytes`; plans each setting that it tries.
train::SettingsFound find_settings(const train::RunConfig& run, std::int64_t budget_bytes);

// A table, or one JSON object. `settings` may be null.
std::string to_table(const ModelPlan& planned, const train::SettingsFound* settings);
std::string to_json(const ModelPlan& planned, const train::SettingsFound* settings);

// The same if the run's own setting is refused: the reason, and settings that fit.
std::string to_table(const plan::Refusal& refusal, const train::SettingsFound& settings);
std::string to_json(const plan::Refusal& refusal, const train::SettingsFound& settings);

}  // namespace anabatic::cli
