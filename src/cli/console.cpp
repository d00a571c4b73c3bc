// SPDX-License-Identifier: Apache-2.0
#include "cli/console.h"

#include <fmt/core.h>

#include <algorithm>
#include <filesystem>

#include "base/text.h"
#include "cli/progress.h"
#include "cli/standard_output.h"
#include "train/expert_balance.h"

namespace anabatic::cli {
namespace {

constexpr const char* kClearLine = "\r\033[K";
constexpr std::size_t kLargest = 4;  // consumers of memory that are named

const char* prefix(Severity severity) {
  return severity == Severity::kWarning ? "warning: "
         : severity == Severity::kError ? "error: "
                                        : "";
}

const char* beside(bool counts_process) {
  return counts_process ? "" : " in addition to the process itself";
}

}  // namespace

std::string format_peak(std::int64_t peak_memory_bytes) {
  return peak_memory_bytes > 0 ? format_bytes(peak_memory_bytes) : "unknown";
}

std::string console_line(const StepMetrics& m) {
  std::string line = fmt::format(
      "step {}/{} | loss {:.4f} | grad_norm {:.3f} | lr {:.2e} | {:.0f} tokens/s | MFU {}", m.step,
      m.steps, m.loss, m.grad_norm, m.learning_rate, m.tokens_per_second,
      m.mfu ? fmt::format("{:.1f} %", 100 * *m.mfu) : "n/a");
  double busiest = 0;
  for (const LayerBalance& layer : m.experts) busiest = std::max(busiest, layer.max_over_mean);
  if (m.is_skipped) line += " | skipped";
  if (m.mtp_loss) line += fmt::format(" | mtp_loss {:.4f}", *m.mtp_loss);
  if (m.preference)
    line += fmt::format(" | accuracy {:.2f} | margin {:.3f}", m.preference->accuracy,
                        m.preference->margin);
  if (!m.experts.empty()) line += fmt::format(" | load {:.2f}", busiest);
  if (m.comm) {
    line += fmt::format(" | comm exposed {:.1f} %", 100 * m.comm->exposed_s / m.step_time_s);
    if (m.comm->waited_for) line += fmt::format(", rank {}", *m.comm->waited_for);
  }
  return line;
}

std::string plan_to_string(const PlanSummary& plan) {
  std::string parts;
  std::int64_t rest = plan.peak_memory_bytes;
  for (std::size_t i = 0; i < std::min(kLargest, plan.memory.size()); ++i) {
    parts += fmt::format("{} {}, ", plan.memory[i].name, format_bytes(plan.memory[i].bytes));
    rest -= plan.memory[i].bytes;
  }
  std::string text = fmt::format("memory: predicted peak {}{}\n",
                                 format_bytes(plan.peak_memory_bytes), beside(plan.counts_process));
  if (!parts.empty())
    text += fmt::format("  of which {}other {}\n", parts,
                        format_bytes(std::max<std::int64_t>(rest, 0)));
  if (plan.num_choices > 0)
    text += fmt::format(
        "  {} values are not kept for the backward: recomputed, compressed or on disk\n",
        plan.num_choices);
  if (!plan.disk.empty()) text += fmt::format("on disk: {}\n", plan.disk);
  return text + fmt::format("step: predicted {:.3g} s ({}); {} lists every byte", plan.step_seconds,
                            plan.price_source, plan.file);
}

void Console::clear_bar() {
  if (!has_bar_) return;
  write_progress(out_, kClearLine);
  has_bar_ = false;
}

void Console::print(const std::string& line) {
  clear_bar();
  write_progress(out_, line + "\n");
}

void Console::on_message(Severity severity, const std::string& text) {
  print(prefix(severity) + text);
}

void Console::on_plan(const PlanSummary& plan) { print(plan_to_string(plan)); }

double Console::elapsed() const { return 1e-9 * static_cast<double>(options_.now() - begin_); }

void Console::on_step(const StepMetrics& m) {
  if (first_step_ == 0) {
    first_step_ = m.step;
    begin_ = options_.now() - static_cast<std::int64_t>(1e9 * m.step_time_s);
  }
  if (!options_.is_terminal) {
    if (is_shown(m.step, first_step_, options_.last_step, options_.log_every))
      print(console_line(m));
    return;
  }
  clear_bar();
  std::string line = progress_bar(m.step, options_.last_step, m.step - first_step_ + 1, elapsed());
  const std::string metrics = console_line(m);
  line += metrics.substr(metrics.find(" | "));
  write_progress(out_,
                 line.substr(0, options_.columns - 1));  // a wrapped line could not be cleared
  has_bar_ = true;
}

void Console::on_validation(std::int64_t step, const EvaluationSummary& evaluation) {
  const std::string what =
      evaluation.preference
          ? fmt::format("accuracy {:.3f} | margin {:.3f} | {} pairs",
                        evaluation.preference->accuracy, evaluation.preference->margin,
                        evaluation.preference->pairs)
          : fmt::format("perplexity {:.2f} | {} tokens", evaluation.perplexity, evaluation.tokens);
  print(fmt::format("validation | step {} | loss {:.4f} | {}", step, evaluation.loss, what));
}

void Console::on_end(const train::TrainResult& result) {
  clear_bar();
  if (result.interrupted)
    print(fmt::format("stopped after step {}; the same command resumes from {}", result.step,
                      result.checkpoint.string()));
  if (first_step_ > 0)
    print(fmt::format("trained steps {} to {} in {}, loss of the last {:.4f}", first_step_,
                      result.step, format_duration(elapsed()), result.loss));
  if (result.before && result.after)
    print(fmt::format("validation loss {:.4f} before, {:.4f} after", result.before->loss,
                      result.after->loss));
  if (result.expert_steps > 0 && !result.experts.empty())
    print(train::table_to_string(result.experts, train::over_last_steps(result.expert_steps)));
  if (!result.disk.empty()) print("disk: " + result.disk);
  print(fmt::format("memory: predicted peak {}{}, measured peak {}",
                    format_bytes(result.planned_memory_bytes), beside(result.counts_process),
                    format_peak(result.peak_memory_bytes)));
  if (result.step_seconds > 0)
    print(fmt::format("step: predicted {:.3g} s, measured {:.3g} s (median)",
                      result.planned_step_seconds, result.step_seconds));
  print_files(result);
}

void Console::print_files(const train::TrainResult& result) {
  const std::filesystem::path output = options_.output;
  if (!result.checkpoint.empty())
    print(fmt::format("model: {}, {}", result.checkpoint.string(),
                      options_.has_replaced_ops
                          ? "trained with ops of plugins (model.replace), which other programs "
                            "do not know"
                      : options_.trains_adapter ? "an adapter, which PEFT loads too"
                                                : "which Hugging Face loads too"));
  std::string metrics = (output / "metrics.jsonl").string();
  if (result.after) metrics += " and " + (output / "validation.jsonl").string();
  print(fmt::format("metrics: {}; TensorBoard reads {}", metrics, output.string()));
}

void print_message(Severity severity, const std::string& text) {
  const std::string line = fmt::format("{}{}\n", prefix(severity), text);
  std::fwrite(line.data(), 1, line.size(), stderr);
}

}  // namespace anabatic::cli
