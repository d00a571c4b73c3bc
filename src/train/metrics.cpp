// SPDX-License-Identifier: Apache-2.0
#include "train/metrics.h"

#include <algorithm>

#include "base/json.h"

namespace anabatic::train {
namespace {

io::JsonLinesWriter open_lines(const std::filesystem::path& file, std::int64_t resumed_step) {
  std::filesystem::create_directories(file.parent_path());
  io::keep_steps(file, resumed_step);
  return io::JsonLinesWriter(file);
}

}  // namespace

double busiest(const StepMetrics& metrics) {
  return metrics.expert_load.empty()
             ? 0
             : *std::max_element(metrics.expert_load.begin(), metrics.expert_load.end());
}

MetricsLog::MetricsLog(const std::filesystem::path& output, std::int64_t resumed_step,
                       bool validates_again)
    : lines_(open_lines(output / "metrics.jsonl", resumed_step)),
      validation_lines_(open_lines(output / "validation.jsonl",
                                   validates_again ? resumed_step - 1 : resumed_step)),
      events_(output) {}

void MetricsLog::write(const StepMetrics& m) {
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
}

void MetricsLog::write_validation(std::int64_t step, const Evaluation& evaluation) {
  validation_lines_.write({{"step", step},
                           {"loss", evaluation.loss},
                           {"perplexity", evaluation.perplexity},
                           {"tokens", evaluation.tokens}});
  const std::vector<io::Scalar> scalars{{"validation/loss", evaluation.loss},
                                        {"validation/perplexity", evaluation.perplexity}};
  events_.write(step, scalars);
}

}  // namespace anabatic::train
