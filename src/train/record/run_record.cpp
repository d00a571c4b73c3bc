// SPDX-License-Identifier: Apache-2.0
#include "train/record/run_record.h"

#include <fmt/core.h>
#include <sys/utsname.h>

#include <algorithm>
#include <array>
#include <chrono>

#include "anabatic/version.h"
#include "base/json.h"
#include "base/text.h"
#include "device/cpu_limits.h"
#include "device/memory.h"
#include "model/model.h"
#include "plan/account.h"

namespace anabatic::train {
namespace {

using UseBytes = std::array<std::int64_t, plan::kNumUses>;

constexpr int kRecordFormat = 1;
constexpr std::size_t kMostColumns = 240;  // of the timeline

std::int64_t now_milliseconds() {
  return std::chrono::duration_cast<std::chrono::milliseconds>(
             std::chrono::system_clock::now().time_since_epoch())
      .count();
}

std::string system_name() {
  utsname name{};
  return ::uname(&name) == 0 ? fmt::format("{} {}", name.sysname, name.release) : "";
}

OrderedJson environment_json(const ModelSession& session) {
  const spec::DeviceSpec& device = session.device();
  return {{"version", kVersion},
          {"cpu", device.model},
          {"threads", device.num_threads},
          {"cores", to_string(device::cpu_limits())},
          {"instruction_sets", device.instruction_sets},
          {"precision", session.run().train.precision},
          {"fp32_flops_per_second", device.fp32_flops_per_second},
          {"bf16_flops_per_second", device.bf16_flops_per_second},
          {"available_bytes", device::available_bytes() + device::current_resident_bytes()},
          {"system", system_name()}};
}

OrderedJson model_json(const model::ModelConfig& config) {
  const model::Moe* moe = model::first_moe(config.spec);
  return {{"type", config.model_type},
          {"parameters", config.counts.total},
          {"active_parameters", config.counts.active},
          {"layers", config.spec.layers.size()},
          {"experts", model::num_experts(config.spec)},
          {"experts_per_token", moe != nullptr ? moe->top_k : 0}};
}

OrderedJson config_json(const RunConfig& run) {
  OrderedJson json = OrderedJson::object();
  for (const ConfigKey& key : config_keys()) json[key.name] = key.show(run);
  return json;
}

// The defaults of keys, to tell what a user chose.
OrderedJson defaults_json() { return config_json(RunConfig{}); }

OrderedJson shares_json(const MemoryAccount& memory) {
  OrderedJson json = OrderedJson::array();
  for (const MemoryShare& share : shares(memory))
    json.push_back({{"name", share.name}, {"bytes", share.bytes}});
  return json;
}

// Each column keeps its fullest call, so that the peak shows.
std::vector<UseBytes> columns_of(const std::vector<UseBytes>& rows) {
  const auto slack = static_cast<std::size_t>(plan::Use::kSlack);
  const std::size_t count = std::min(rows.size(), kMostColumns);
  std::vector<UseBytes> columns;
  for (std::size_t c = 0; c < count; ++c) {
    const auto at = [&](std::size_t i) {
      return rows.begin() + static_cast<std::ptrdiff_t>(i * rows.size() / count);
    };
    columns.push_back(*std::min_element(
        at(c), at(c + 1),
        [&](const UseBytes& a, const UseBytes& b) { return a[slack] < b[slack]; }));
  }
  return columns;
}

OrderedJson timeline_json(const lower::Compiled& training) {
  const std::vector<UseBytes> rows = plan::timeline(training.graph, training.plan);
  const std::vector<UseBytes> columns = columns_of(rows);
  OrderedJson uses = OrderedJson::object();
  for (std::size_t use = 0; use < plan::kNumUses; ++use) {
    OrderedJson bytes = OrderedJson::array();
    for (const UseBytes& column : columns) bytes.push_back(column[use]);
    uses[std::string(to_string(static_cast<plan::Use>(use)))] = std::move(bytes);
  }
  OrderedJson actions = OrderedJson::array();
  for (const auto& [action, order] : training.plan.orders)
    actions.push_back({{"name", to_string(action)}, {"calls", order.size()}});
  return {
      {"num_positions", rows.size()}, {"actions", std::move(actions)}, {"uses", std::move(uses)}};
}

OrderedJson segments_json(const std::map<std::string, double>& seconds) {
  OrderedJson json = OrderedJson::object();
  for (const auto& [segment, value] : seconds) json[segment.empty() ? "other" : segment] = value;
  return json;
}

OrderedJson plan_json(const lower::Compiled& training, const RunRecord& record) {
  return {{"peak_bytes", record.planned_peak_bytes},
          {"beside_step_bytes", record.memory.beside_step()},
          {"peak_op", record.memory.step.peak_op},
          {"peak_position", record.memory.step.peak_position},
          {"memory", shares_json(record.memory)},
          {"step_seconds", record.price.seconds},
          {"forward_seconds", record.price.forward_seconds},
          {"backward_seconds", record.price.backward_seconds},
          {"update_seconds", record.price.update_seconds},
          {"disk_seconds", record.price.disk_seconds},
          {"segments", segments_json(record.segment_seconds)},
          {"price_source", record.price_source},
          {"timeline", timeline_json(training)}};
}

}  // namespace

void write_run_record(const std::filesystem::path& output, const ModelSession& session,
                      const lower::Compiled& training, const RunRecord& record) {
  const RunConfig& run = session.run();
  const OrderedJson json{
      {"format", kRecordFormat},
      {"id", record.run.id},
      {"started_milliseconds", record.run.started_milliseconds},
      {"process_started_milliseconds", now_milliseconds()},
      {"first_step", record.first_step},
      {"steps", run.train.steps},
      {"tokens_a_step", run.train.micro_batch_size * run.train.gradient_accumulation_steps *
                            run.data.sequence_length},
      {"model", model_json(session.config())},
      {"environment", environment_json(session)},
      {"config", config_json(run)},
      {"defaults", defaults_json()},
      {"plan", plan_json(training, record)}};
  write_file_atomically(output / kRunRecordFile, show_json(json) + "\n");
}

}  // namespace anabatic::train
