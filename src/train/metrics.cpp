// SPDX-License-Identifier: Apache-2.0
#include "train/metrics.h"

#include <fmt/core.h>

#include <algorithm>

#include "base/json.h"

namespace anabatic::train {
namespace {

io::JsonLinesWriter open_lines(const std::filesystem::path& file, std::int64_t resumed_step) {
  std::filesystem::create_directories(file.parent_path());
  io::keep_steps(file, resumed_step);
  return io::JsonLinesWriter(file);
}

void add_comm(nlohmann::ordered_json& object, const CommMetrics& comm) {
  object["comm_bytes"] = comm.bytes;
  object["comm_busy_s"] = comm.busy_s;
  object["comm_exposed_s"] = comm.exposed_s;
  if (comm.waited_for) object["waited_for"] = *comm.waited_for;
}

// The members of a line that say how busy experts are, an array over MoE layers each.
void add_experts(nlohmann::ordered_json& object, const std::vector<LayerBalance>& experts) {
  auto largest = nlohmann::ordered_json::array(), smallest = largest, below = largest;
  for (const LayerBalance& layer : experts) {
    largest.push_back(layer.max_over_mean);
    smallest.push_back(layer.min_over_mean);
    below.push_back(layer.below_tenth);
  }
  object["expert_load"] = std::move(largest);
  object["expert_load_min"] = std::move(smallest);
  object["experts_below_10_percent"] = std::move(below);
}

// The names and values of what pairs have, in files of metrics.
std::vector<std::pair<const char*, double>> preference_values(const PreferenceMetrics& of_pairs) {
  return {{"accuracy", of_pairs.accuracy},
          {"margin", of_pairs.margin},
          {"chosen_reward", of_pairs.chosen_reward},
          {"rejected_reward", of_pairs.rejected_reward},
          {"chosen_log_probability", of_pairs.chosen_log_probability},
          {"rejected_log_probability", of_pairs.rejected_log_probability},
          {"chosen_tokens", of_pairs.chosen_tokens},
          {"rejected_tokens", of_pairs.rejected_tokens}};
}

// Each layer, the worst of them, and experts of all of them.
void add_experts(std::vector<io::Scalar>& scalars, const std::vector<LayerBalance>& experts) {
  double largest = 0, smallest = experts.front().min_over_mean;
  std::int64_t below = 0;
  for (const LayerBalance& layer : experts) {
    largest = std::max(largest, layer.max_over_mean);
    smallest = std::min(smallest, layer.min_over_mean);
    below += layer.below_tenth;
    const std::string place = fmt::format("experts/layer_{}/", layer.layer);
    scalars.push_back({place + "load_max_over_mean", layer.max_over_mean});
    scalars.push_back({place + "load_min_over_mean", layer.min_over_mean});
    scalars.push_back({place + "below_10_percent", static_cast<double>(layer.below_tenth)});
  }
  scalars.push_back({"experts/load_max_over_mean", largest});
  scalars.push_back({"experts/load_min_over_mean", smallest});
  scalars.push_back({"experts/below_10_percent", static_cast<double>(below)});
}

}  // namespace

RankMetricsLog::RankMetricsLog(const std::filesystem::path& output, std::int32_t rank,
                               std::int64_t resumed_step)
    : lines_(open_lines(output / fmt::format("{}{}.jsonl", kRankMetrics, rank), resumed_step)) {}

void RankMetricsLog::write(const StepMetrics& m) {
  nlohmann::ordered_json object{{"step", m.step}, {"step_time_s", m.step_time_s}};
  if (m.peak_memory_bytes > 0) object["peak_memory_bytes"] = m.peak_memory_bytes;
  if (m.comm) add_comm(object, *m.comm);
  lines_.write(object);
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
  if (m.mtp_loss) object["mtp_loss"] = *m.mtp_loss;
  if (m.preference) {
    object["pairs"] = m.preference->pairs;
    for (const auto& [name, value] : preference_values(*m.preference)) object[name] = value;
  }
  object["grad_norm"] = m.grad_norm;
  if (m.loss_scale) {
    object["loss_scale"] = *m.loss_scale;
    object["skipped"] = m.is_skipped;
  }
  for (const SparsityMetrics& units : m.sparsity) object["density"][units.units] = units.density;
  if (m.int8_zeroed) object["int8_zeroed"] = *m.int8_zeroed;
  if (m.int8_fallback) object["int8_fallback"] = *m.int8_fallback;
  object["learning_rate"] = m.learning_rate;
  object["tokens_per_second"] = m.tokens_per_second;
  object["step_time_s"] = m.step_time_s;
  object["tflops"] = m.tflops;
  object["mfu"] = m.mfu ? nlohmann::ordered_json(*m.mfu) : nlohmann::ordered_json();
  object["peak_memory_bytes"] = m.peak_memory_bytes > 0
                                    ? nlohmann::ordered_json(m.peak_memory_bytes)
                                    : nlohmann::ordered_json();
  object["planned_memory_bytes"] = m.planned_memory_bytes;
  add_experts(object, m.experts);
  if (m.comm) add_comm(object, *m.comm);
  object["epoch"] = m.epoch;
  object["tokens"] = m.tokens;
  lines_.write(object);

  std::vector<io::Scalar> scalars{{"train/loss", m.loss},
                                  {"train/grad_norm", m.grad_norm},
                                  {"train/learning_rate", m.learning_rate},
                                  {"speed/tokens_per_second", m.tokens_per_second}};
  if (m.mtp_loss) scalars.push_back({"train/mtp_loss", *m.mtp_loss});
  if (m.loss_scale) scalars.push_back({"train/loss_scale", *m.loss_scale});
  for (const SparsityMetrics& units : m.sparsity)
    scalars.push_back({fmt::format("density/{}", units.units), units.density});
  if (m.int8_zeroed) scalars.push_back({"int8/zeroed", *m.int8_zeroed});
  if (m.int8_fallback) scalars.push_back({"int8/fallback", *m.int8_fallback});
  if (m.preference)
    for (const auto& [name, value] : preference_values(*m.preference))
      scalars.push_back({fmt::format("preference/{}", name), value});
  if (m.mfu) scalars.push_back({"speed/mfu", *m.mfu});
  if (m.comm) {
    scalars.push_back({"comm/bytes", static_cast<double>(m.comm->bytes)});
    scalars.push_back({"comm/busy_s", m.comm->busy_s});
    scalars.push_back({"comm/exposed_s", m.comm->exposed_s});
  }
  if (m.peak_memory_bytes > 0)
    scalars.push_back({"memory/peak_bytes", static_cast<double>(m.peak_memory_bytes)});
  if (!m.experts.empty()) {
    scalars.push_back({"train/aux_loss", m.aux_loss});
    add_experts(scalars, m.experts);
  }
  events_.write(m.step, scalars);
}

void MetricsLog::write_validation(std::int64_t step, const Evaluation& evaluation) {
  nlohmann::ordered_json object{{"step", step},
                                {"loss", evaluation.loss},
                                {"perplexity", evaluation.perplexity},
                                {"tokens", evaluation.tokens}};
  if (evaluation.preference) {
    object.erase("perplexity");
    object["pairs"] = evaluation.preference->pairs;
    for (const auto& [name, value] : preference_values(*evaluation.preference))
      object[name] = value;
  }
  if (!evaluation.experts.empty()) add_experts(object, evaluation.experts);
  validation_lines_.write(object);
  std::vector<io::Scalar> scalars{{"validation/loss", evaluation.loss}};
  if (evaluation.preference)
    scalars.push_back({"validation/accuracy", evaluation.preference->accuracy});
  else
    scalars.push_back({"validation/perplexity", evaluation.perplexity});
  events_.write(step, scalars);
}

void MetricsLog::sync() const {
  lines_.sync();
  validation_lines_.sync();
  events_.sync();
}

}  // namespace anabatic::train
