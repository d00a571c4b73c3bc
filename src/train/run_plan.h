// SPDX-License-Identifier: Apache-2.0
// A run planned from its config alone: the programs that `train` binds, and their predicted time.
// Allocates no arenas and no states and runs no kernel.
#pragma once
#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "lower/compile.h"
#include "model/model.h"
#include "plan/outcome.h"
#include "plan/prices.h"
#include "train/model_session.h"
#include "train/run_config.h"

namespace anabatic::train {

// What `train` asks the compiler for.
ModelSession::CompileRequest training_request(const RunConfig& run,
                                              const model::ModelConfig& config);
ModelSession::CompileRequest evaluation_request(const RunConfig& run);

struct RunPlan {
  lower::Compiled training;
  std::optional<lower::Compiled> evaluation;  // when there is validation data
  std::int64_t step_bytes = 0;                // what the training program was kept to; 0: nothing
};

struct StepRequest {
  std::int64_t bytes = 0;                   // for states and arenas of the training program; 0: any
  const spec::Decisions* replay = nullptr;  // these, and none of its own
  const spec::Decisions* warm_start = nullptr;  // of a plan for almost these bytes
  std::int32_t rank = 0;                        // whose program it is
  double expert_capacity = 0;                   // spec::Decisions; for a run with auto
};

// Unsupported and InvalidArgument as compiling says them; a refusal when the training program
// cannot be kept to its bytes.
plan::Outcome<RunPlan> plan_run(const RunConfig& run, const model::ModelConfig& config,
                                const spec::DeviceSpec& device,
                                const plan::OpEfficiency& efficiency,
                                const StepRequest& request = {});

// Keeps the whole process, of which `process_bytes` are resident before, within run.memory.budget
// (0, and kAvailable, which train/budget.h settles: no budget). A refusal is of the process.
// `whole`: the plan without a budget, where it is known.
plan::Outcome<RunPlan> plan_within_budget(const RunConfig& run, const model::ModelConfig& config,
                                          const spec::DeviceSpec& device,
                                          const plan::OpEfficiency& efficiency,
                                          std::int64_t process_bytes,
                                          const RunPlan* whole = nullptr);

// Seconds of a step of `run` on `device`, whose peaks may be missing.
plan::StepPrice price_run(const RunConfig& run, const lower::Compiled& training,
                          const spec::DeviceSpec& device, plan::OpEfficiency efficiency);

// The same by segment, without waits for the disk.
std::map<std::string, double> price_segments(const RunConfig& run, const lower::Compiled& training,
                                             const spec::DeviceSpec& device,
                                             plan::OpEfficiency efficiency);

// The part of the plan's disk_bytes that activations take.
std::int64_t offloaded_bytes(const plan::Plan& plan);

// What is on disk and what that costs, for people. Empty if nothing was to be chosen.
std::string disk_to_string(const RunConfig& run, const lower::Compiled& training,
                           const plan::StepPrice& price);

}  // namespace anabatic::train
