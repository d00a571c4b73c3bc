// SPDX-License-Identifier: Apache-2.0
// The metrics of a step in files: an object of metrics.jsonl, TensorBoard scalars.
#pragma once
#include <cstdint>
#include <filesystem>

#include "anabatic/events.h"
#include "io/json_lines.h"
#include "io/tensorboard.h"
#include "train/evaluate.h"

namespace anabatic::train {

inline constexpr const char* kRankMetrics = "metrics.rank-";  // how names of their files begin

// OUTPUT/metrics.rank-N.jsonl of a rank other than the first: what its own steps took.
class RankMetricsLog {
 public:
  // Appends, dropping lines after `resumed_step`.
  RankMetricsLog(const std::filesystem::path& output, std::int32_t rank, std::int64_t resumed_step);
  void write(const StepMetrics& metrics);

 private:
  io::JsonLinesWriter lines_;
};

class MetricsLog {
 public:
  // Appends to OUTPUT/metrics.jsonl and OUTPUT/validation.jsonl, dropping lines after
  // `resumed_step`, and starts a TensorBoard file in OUTPUT. A run that validates right away
  // (`validates_again`) drops that step's validation too.
  MetricsLog(const std::filesystem::path& output, std::int64_t resumed_step, bool validates_again);

  void write(const StepMetrics& metrics);
  void write_validation(std::int64_t step, const Evaluation& evaluation);
  // Makes the files durable: a checkpoint then finds the lines of its steps.
  void sync() const;

 private:
  io::JsonLinesWriter lines_, validation_lines_;
  io::EventWriter events_;
};

}  // namespace anabatic::train
