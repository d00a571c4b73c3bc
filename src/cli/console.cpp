// SPDX-License-Identifier: Apache-2.0
#include "cli/console.h"

#include <fmt/core.h>

#include "base/log.h"
#include "base/text.h"
#include "train/expert_balance.h"

namespace anabatic::cli {
namespace {

constexpr const char* kClearLine = "\r\033[K";

std::string progress_bar(const StepMetrics& metrics) {
  constexpr std::int64_t kWidth = 20;
  const std::int64_t filled = metrics.steps > 0 ? kWidth * metrics.step / metrics.steps : kWidth;
  return "[" + std::string(static_cast<std::size_t>(filled), '#') +
         std::string(static_cast<std::size_t>(kWidth - filled), '.') + "] ";
}

const char* prefix(Severity severity) {
  return severity == Severity::kWarning ? "warning: "
         : severity == Severity::kError ? "error: "
                                        : "";
}

const char* beside(bool counts_process) {
  return counts_process ? "" : " beside what the process itself takes";
}

}  // namespace

std::string format_peak(std::int64_t peak_memory_bytes) {
  return peak_memory_bytes > 0 ? format_bytes(peak_memory_bytes) : "unknown";
}

std::string console_line(const StepMetrics& m) {
  std::string line = fmt::format(
      "step {}/{} | loss {:.4f} | grad_norm {:.3f} | lr {:.3e} | {:.0f} tokens/s | {:.3f} TFLOP/s "
      "| MFU {:.1f}%",
      m.step, m.steps, m.loss, m.grad_norm, m.learning_rate, m.tokens_per_second, m.tflops,
      100 * m.mfu);
  line += fmt::format(" | memory {}/{}", format_peak(m.peak_memory_bytes),
                      format_bytes(m.planned_memory_bytes));
  if (!m.experts.empty()) line += " | " + train::worst_to_string(m.experts);
  return line;
}

void Console::print(const std::string& line) {
  fmt::print(out_, "{}{}\n", has_bar_ ? kClearLine : "", line);
  has_bar_ = false;
  std::fflush(out_);
}

void Console::end_bar() {
  if (!has_bar_) return;
  fmt::print(out_, "\n");
  has_bar_ = false;
  std::fflush(out_);
}

void Console::on_message(Severity severity, const std::string& text) {
  print(prefix(severity) + text);
}

void Console::on_plan(const PlanSummary& plan) {
  print(fmt::format("memory: predicted peak {}{}, of which\n{}",
                    format_bytes(plan.peak_memory_bytes), beside(plan.counts_process),
                    plan.text.substr(0, plan.text.find_last_not_of('\n') + 1)));
}

void Console::on_step(const StepMetrics& m) {
  const bool is_last = m.step == m.steps;
  if (is_terminal_) {
    fmt::print(out_, "{}{}{}", has_bar_ ? kClearLine : "", progress_bar(m), console_line(m));
    has_bar_ = true;
    std::fflush(out_);
    if (is_last) end_bar();
  } else if (is_last || !has_stepped_ || m.step % log_every_ == 0) {
    print(console_line(m));
  }
  has_stepped_ = true;
}

void Console::on_validation(std::int64_t step, const EvaluationSummary& evaluation) {
  print(fmt::format("validation | step {} | loss {:.4f} | perplexity {:.2f} | {} tokens", step,
                    evaluation.loss, evaluation.perplexity, evaluation.tokens));
}

void Console::on_end(const train::TrainResult& result) {
  end_bar();
  if (result.interrupted)
    print(fmt::format("stopped after step {}; the same command goes on from {}", result.step,
                      result.checkpoint.string()));
  if (result.expert_steps > 0 && !result.experts.empty())
    print(train::table_to_string(result.experts, train::over_last_steps(result.expert_steps)));
  if (!result.disk.empty()) print("disk: " + result.disk);
  print(fmt::format("memory: predicted peak {}{}, measured peak {}",
                    format_bytes(result.planned_memory_bytes), beside(result.counts_process),
                    format_peak(result.peak_memory_bytes)));
  if (result.step_seconds > 0)
    print(fmt::format("step: predicted {:.3g} s, measured {:.3g} s (median)",
                      result.planned_step_seconds, result.step_seconds));
}

void print_messages_to_standard_error() {
  set_log_sink([](Severity severity, const std::string& text) {
    const std::string line = fmt::format("{}{}\n", prefix(severity), text);
    std::fwrite(line.data(), 1, line.size(), stderr);
  });
}

}  // namespace anabatic::cli
