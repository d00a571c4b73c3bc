// SPDX-License-Identifier: Apache-2.0
#include "train/metrics.h"

#include <fmt/core.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>

#include "base/json.h"
#include "base/text.h"

namespace anabatic::train {
namespace {

io::JsonLinesWriter open_lines(const std::filesystem::path& file, std::int64_t resumed_step) {
  std::filesystem::create_directories(file.parent_path());
  io::keep_steps(file, resumed_step);
  return io::JsonLinesWriter(file);
}

double busiest(const StepMetrics& metrics) {
  return metrics.expert_load.empty()
             ? 0
             : *std::max_element(metrics.expert_load.begin(), metrics.expert_load.end());
}

std::string progress_bar(const StepMetrics& metrics) {
  constexpr std::int64_t kWidth = 20;
  const std::int64_t filled = metrics.steps > 0 ? kWidth * metrics.step / metrics.steps : kWidth;
  return "[" + std::string(static_cast<std::size_t>(filled), '#') +
         std::string(static_cast<std::size_t>(kWidth - filled), '.') + "] ";
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
  if (!m.expert_load.empty()) line += fmt::format(" | expert load max/mean {:.2f}", busiest(m));
  return line;
}

MetricsLog::MetricsLog(const std::filesystem::path& output, std::int64_t resumed_step,
                       bool validates_again)
    : lines_(open_lines(output / "metrics.jsonl", resumed_step)),
      validation_lines_(open_lines(output / "validation.jsonl",
                                   validates_again ? resumed_step - 1 : resumed_step)),
      events_(output),
      is_terminal_(::isatty(STDOUT_FILENO) == 1) {}

void MetricsLog::write(const StepMetrics& m, bool to_console) {
  nlohmann::ordered_json object{{"step", m.step}, {"loss", m.loss}, {"aux_loss", m.aux_loss}};
  if (m.z_loss) object["z_loss"] = *m.z_loss;
  object["grad_norm"] = m.grad_norm;
  object["learning_rate"] = m.learning_rate;
  object["tokens_per_second"] = m.tokens_per_second;
  object["step_time_s"] = m.step_time_s;
  object["tflops"] = m.tflops;
  object["mfu"] = m.mfu;
  object["peak_memory_bytes"] = m.peak_memory_bytes > 0
                                    ? nlohmann::ordered_json(m.peak_memory_bytes)
                                    : nlohmann::ordered_json();
  object["planned_memory_bytes"] = m.planned_memory_bytes;
  object["expert_load"] = m.expert_load;
  object["epoch"] = m.epoch;
  object["tokens"] = m.tokens;
  lines_.write(object);

  std::vector<io::Scalar> scalars{{"train/loss", m.loss},
                                  {"train/grad_norm", m.grad_norm},
                                  {"train/learning_rate", m.learning_rate},
                                  {"speed/tokens_per_second", m.tokens_per_second},
                                  {"speed/mfu", m.mfu}};
  if (m.peak_memory_bytes > 0)
    scalars.push_back({"memory/peak_bytes", static_cast<double>(m.peak_memory_bytes)});
  if (!m.expert_load.empty()) {
    scalars.push_back({"train/aux_loss", m.aux_loss});
    scalars.push_back({"experts/load_max_over_mean", busiest(m)});
  }
  events_.write(m.step, scalars);

  if (is_terminal_) {
    fmt::print("\r\033[K{}{}{}", progress_bar(m), console_line(m), m.step == m.steps ? "\n" : "");
  } else if (to_console) {
    fmt::print("{}\n", console_line(m));
  }
  std::fflush(stdout);
}

void MetricsLog::write_validation(std::int64_t step, const Evaluation& evaluation) {
  validation_lines_.write({{"step", step},
                           {"loss", evaluation.loss},
                           {"perplexity", evaluation.perplexity},
                           {"tokens", evaluation.tokens}});
  const std::vector<io::Scalar> scalars{{"validation/loss", evaluation.loss},
                                        {"validation/perplexity", evaluation.perplexity}};
  events_.write(step, scalars);
  fmt::print("{}validation | step {} | loss {:.4f} | perplexity {:.2f} | {} tokens\n",
             is_terminal_ ? "\r\033[K" : "", step, evaluation.loss, evaluation.perplexity,
             evaluation.tokens);
  std::fflush(stdout);
}

}  // namespace anabatic::train
