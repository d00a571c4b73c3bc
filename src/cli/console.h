// SPDX-License-Identifier: Apache-2.0
// The output of `train`: a progress bar on a terminal, plain lines elsewhere.
#pragma once
#include <cstdint>
#include <cstdio>
#include <string>

#include "anabatic/events.h"
#include "cli/interrupt.h"
#include "device/clock.h"
#include "train/trainer.h"

namespace anabatic::cli {

// "1.5 GiB", or "unknown" for 0.
std::string format_peak(std::int64_t peak_memory_bytes);

// "step 3/100 | loss 5.1234 | grad_norm 1.200 | lr 3.00e-04 | ...", in 100 columns. `load` is the
// tokens of the busiest expert of any layer, over the mean.
std::string console_line(const StepMetrics& metrics);
// The prediction in a few lines; the plan's file has the whole account.
std::string plan_to_string(const PlanSummary& plan);

struct ConsoleOptions {
  bool is_terminal = false;    // lines may be rewritten: a bar instead of many lines
  std::size_t columns = 100;   // of the terminal
  std::int64_t log_every = 0;  // steps between plain lines; 0: fewer in long runs, see cli/progress
  std::int64_t last_step = 0;  // of the run
  std::string output;          // directory of the run
  bool has_replaced_ops = false;  // the model has ops of plugins, which other programs have not
  bool trains_adapter = false;
  device::Clock now = device::wall_nanoseconds;
};

class Console : public RunListener {
 public:
  Console(std::FILE* out, ConsoleOptions options) : out_(out), options_(std::move(options)) {}

  // Lets `interrupt` end the run; it must outlive the run.
  void set_interrupt(const InterruptGuard& interrupt) { interrupt_ = &interrupt; }

  void on_message(Severity severity, const std::string& text) override;
  void on_plan(const PlanSummary& plan) override;
  void on_step(const StepMetrics& metrics) override;
  void on_validation(std::int64_t step, const EvaluationSummary& evaluation) override;
  bool stop_requested() override { return interrupt_ != nullptr && interrupt_->requested(); }

  // Removes the bar, so that another stream can print a line on the same terminal.
  void clear_bar();

  // The last lines of the run: losses, memory, speed, and the paths of its files.
  void on_end(const train::TrainResult& result);

 private:
  void print(const std::string& line);

  // Seconds since the first step began.
  double elapsed() const;
  void print_files(const train::TrainResult& result);

  std::FILE* out_;
  ConsoleOptions options_;
  const InterruptGuard* interrupt_ = nullptr;
  bool has_bar_ = false;         // the bar is on the terminal's last line
  std::int64_t first_step_ = 0;  // the first step of this process; 0: none yet
  std::int64_t begin_ = 0;       // begin of that step, on the clock
};

// Prints to standard error, after "warning: " or "error: " for those.
void print_message(Severity severity, const std::string& text);

}  // namespace anabatic::cli
