// SPDX-License-Identifier: Apache-2.0
#include "support/trained_run.h"

#include "base/error.h"
#include "base/text.h"
#include "support/planned_run.h"
#include "support/tiny_run.h"
#include "train/plan_file.h"
#include "train/trainer.h"

namespace anabatic::testing {

std::string trained_bytes(const train::RunConfig& run) {
  return checkpoint_bytes(train::Trainer(run).train().checkpoint);
}

std::vector<double> losses_of(const train::RunConfig& run) {
  std::vector<double> losses;
  for (const nlohmann::json& line :
       json_lines(std::filesystem::path(run.train.output) / "metrics.jsonl"))
    losses.push_back(line["loss"]);
  return losses;
}

train::RunConfig recomputing(train::RunConfig run, const std::filesystem::path& folder) {
  run.compiler.trivial_planners = false;
  const auto whole = plan_of(run).budgeted;
  run.memory.budget = whole.memory.peak_bytes - whole.plan.training.plan.frame_bytes / 3;
  const train::PlanFile file = plan_of(run).file;
  ANABATIC_REQUIRE(!file.decisions.recompute.empty(), "[test] expected a plan that recomputes");
  run.memory.budget = 0;
  run.memory.plan = folder / "plan.json";
  run.train.output = folder / "recomputed";
  write_file_atomically(run.memory.plan, to_json(file));
  return run;
}

}  // namespace anabatic::testing
