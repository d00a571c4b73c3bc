// SPDX-License-Identifier: Apache-2.0
// A run as `train` shows it: a bar on a terminal, plain lines elsewhere.
#pragma once
#include <cstdint>
#include <cstdio>
#include <string>

#include "anabatic/events.h"
#include "cli/interrupt.h"
#include "train/trainer.h"

namespace anabatic::cli {

// "1.5 GiB", or "unknown" for 0.
std::string format_peak(std::int64_t peak_memory_bytes);

// "step 3/100 | loss 5.1234 | grad_norm 1.20 | lr 3.00e-04 | ...".
std::string console_line(const StepMetrics& metrics);

class Console : public RunListener {
 public:
  // Writes to `out`, where lines may be rewritten if it `is_terminal`; elsewhere a step's line
  // comes every `log_every` steps.
  Console(std::FILE* out, bool is_terminal, std::int64_t log_every)
      : out_(out), is_terminal_(is_terminal), log_every_(log_every) {}

  // Ends the run when it is requested; `interrupt` must outlive the run.
  void set_interrupt(const InterruptGuard& interrupt) { interrupt_ = &interrupt; }

  void on_message(Severity severity, const std::string& text) override;
  void on_plan(const PlanSummary& plan) override;
  void on_step(const StepMetrics& metrics) override;
  void on_validation(std::int64_t step, const EvaluationSummary& evaluation) override;
  bool stop_requested() override { return interrupt_ != nullptr && interrupt_->requested(); }

  // The run's last lines.
  void on_end(const train::TrainResult& result);

 private:
  void print(const std::string& line);
  void end_bar();

  std::FILE* out_;
  bool is_terminal_;
  std::int64_t log_every_;
  const InterruptGuard* interrupt_ = nullptr;
  bool has_bar_ = false;      // on the terminal's last line
  bool has_stepped_ = false;  // the first step always has its line
};

// Messages of this process to standard error, "warning: ..." where they are.
void print_messages_to_standard_error();

}  // namespace anabatic::cli
