// SPDX-License-Identifier: Apache-2.0
// A plan's choices as a file that people read, compare and give to another run (memory.plan). JSON:
// `step` identifies the step, `decisions` has the choices, `predicted` their result.
#pragma once
#include <cstdint>
#include <filesystem>
#include <string>
#include <utility>
#include <vector>

#include "base/json.h"
#include "base/json_node.h"
#include "train/memory_account.h"
#include "train/run_plan.h"

namespace anabatic::train {

// Names and texts of what the choices depend on: model, shapes, precision, device.
using StepIdentity = std::vector<std::pair<std::string, std::string>>;
StepIdentity step_identity(const RunConfig& run, const model::ModelConfig& config,
                           const spec::DeviceSpec& device);

struct PlanFile {
  StepIdentity step;
  spec::Decisions decisions;
  std::vector<std::string> on_disk;  // names of states, sorted
  // Predicted, in the run that wrote the file.
  std::string plan_hash;        // of order, kernels and offsets
  std::int64_t peak_bytes = 0;  // of the process
  std::int64_t step_bytes = 0;  // of states and arenas of the training program
  double step_seconds = 0, added_seconds = 0;
  std::vector<plan::PricedChoice> choices;
  std::vector<MemoryRow> rows;  // sum to peak_bytes
};

PlanFile make_plan_file(const RunConfig& run, const model::ModelConfig& config,
                        const spec::DeviceSpec& device, const lower::Compiled& training,
                        const MemoryAccount& memory, double step_seconds);
std::string plan_hash(const lower::Compiled& training);
std::vector<std::string> states_on_disk(const lower::Compiled& training);

OrderedJson to_json(const plan::PricedChoice& choice);
OrderedJson to_json(const spec::Decisions& decisions);
// InvalidArgument naming the member.
spec::Decisions read_decisions(const JsonNode& from);
std::string to_json(const PlanFile& plan);
// InvalidArgument naming file and member if it is no plan; ResourceError if it cannot be read.
PlanFile read_plan_file(const std::filesystem::path& file);

// InvalidArgument naming each difference, expected and found.
void require_same_step(const PlanFile& plan, const StepIdentity& step, const std::string& file);
void require_same_tiers(const PlanFile& plan, const lower::Compiled& training,
                        const std::string& file);

// What changes from one to the other: the step, choices, bytes, seconds. For people; one line says
// so where nothing does.
std::string difference(const PlanFile& before, const PlanFile& after);

}  // namespace anabatic::train
