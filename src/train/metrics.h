// SPDX-License-Identifier: Apache-2.0
// What a step reports: a console line, an object of metrics.jsonl, TensorBoard scalars.
#pragma once
#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <vector>

#include "io/json_lines.h"
#include "io/tensorboard.h"
#include "train/evaluate.h"

namespace anabatic::train {

struct StepMetrics {
  std::int64_t step = 0, steps = 0, epoch = 0, tokens = 0;  // tokens: unmasked labels of the step
  double loss = 0;  // of the language model alone, mean over the step's unmasked tokens
  // Unscaled, averaged over micro-batches; 0 without MoE layers.
  double aux_loss = 0;
  std::optional<double> z_loss;  // when it is part of the objective
  double grad_norm = 0, learning_rate = 0;
  double step_time_s = 0, tokens_per_second = 0, tflops = 0,
         mfu = 0;                      // tokens_per_second counts input tokens
  std::int64_t peak_memory_bytes = 0;  // 0: the system does not say
  std::int64_t planned_memory_bytes = 0;
  std::vector<double> expert_load;  // a MoE layer: rows of its busiest expert / mean rows
};

// "1.5 GiB", or "unknown" for 0.
std::string format_peak(std::int64_t peak_memory_bytes);

// "step 3/100 | loss 5.1234 | grad_norm 1.20 | lr 3.00e-04 | ...".
std::string console_line(const StepMetrics& metrics);

class MetricsLog {
 public:
  // Appends to OUTPUT/metrics.jsonl and OUTPUT/validation.jsonl, dropping lines after
  // `resumed_step`, and starts a TensorBoard file in OUTPUT. A run that validates right away
  // (`validates_again`) drops that step's validation too.
  MetricsLog(const std::filesystem::path& output, std::int64_t resumed_step, bool validates_again);

  // `to_console`: print the line (a bar rewritten in place on a terminal, else a plain line).
  void write(const StepMetrics& metrics, bool to_console);
  void write_validation(std::int64_t step, const Evaluation& evaluation);

 private:
  io::JsonLinesWriter lines_, validation_lines_;
  io::EventWriter events_;
  bool is_terminal_;
};

}  // namespace anabatic::train
