// SPDX-License-Identifier: Apache-2.0
// run.json: what a run is and what was planned for it, for its report. Written before the first
// step, again by each process that resumes the run.
#pragma once
#include <cstdint>
#include <filesystem>
#include <map>
#include <string>

#include "plan/prices.h"
#include "train/checkpoint/checkpoint_progress.h"
#include "train/memory_account.h"
#include "train/model_session.h"

namespace anabatic::train {

inline constexpr const char* kRunRecordFile = "run.json";

struct RunRecord {
  RunIdentity run;
  std::int64_t first_step = 1;  // of this process
  std::int64_t planned_peak_bytes = 0;
  const MemoryAccount& memory;
  const plan::StepPrice& price;
  std::map<std::string, double> segment_seconds;  // predicted
  std::string price_source;
};

void write_run_record(const std::filesystem::path& output, const ModelSession& session,
                      const lower::Compiled& training, const RunRecord& record);

}  // namespace anabatic::train
