// SPDX-License-Identifier: Apache-2.0
// The JSON half of the reports: the one file here that parses nlohmann's header.
#include <algorithm>
#include <map>

#include "base/json.h"
#include "bench/report.h"
#include "io/gzip.h"

namespace anabatic::bench {
namespace {

OrderedJson row_json(const ProfileRow& row, double step_seconds) {
  OrderedJson json{{"name", row.name}};
  if (!row.kernel.empty()) json["kernel"] = row.kernel;
  json.update({{"calls", row.calls},
               {"seconds", row.seconds},
               {"share", row.seconds / step_seconds},
               {"flops", row.flops},
               {"bytes", row.bytes},
               {"flops_per_second", row.flops_per_second()},
               {"bytes_per_second", row.bytes_per_second()},
               {"roof_share", row.roof_share()},
               {"imbalance", row.imbalance}});
  return json;
}

OrderedJson rows_json(const std::vector<ProfileRow>& rows, double step_seconds) {
  OrderedJson list = OrderedJson::array();
  for (const ProfileRow& row : rows) list.push_back(row_json(row, step_seconds));
  return list;
}

OrderedJson share_json(double amount, double value) {
  return amount > 0 ? OrderedJson(value) : OrderedJson();
}

// Microseconds, which the format counts in.
double microseconds(std::int64_t nanoseconds) { return 1e-3 * static_cast<double>(nanoseconds); }

OrderedJson exchanges_json(const std::vector<ProfiledExchange>& exchanges) {
  OrderedJson json = OrderedJson::array();
  for (const ProfiledExchange& row : exchanges)
    json.push_back({{"name", row.name},
                    {"kind", row.kind},
                    {"count", row.count},
                    {"sent_bytes", row.sent_bytes},
                    {"busy_seconds", row.busy_seconds},
                    {"exposed_seconds", row.exposed_seconds},
                    {"bytes_per_second", row.bytes_per_second()}});
  return json;
}

OrderedJson track_name(int track, const std::string& name) {
  return {
      {"ph", "M"}, {"pid", 1}, {"tid", track}, {"name", "thread_name"}, {"args", {{"name", name}}}};
}

}  // namespace

std::string to_json(const Profile& profile) {
  const double seconds = profile.step_seconds;
  return OrderedJson{{"model_type", profile.model_type},
                     {"precision", profile.precision},
                     {"cpu", profile.cpu},
                     {"threads", profile.num_threads},
                     {"steps", profile.num_steps},
                     {"warmup_steps", profile.num_warmup_steps},
                     {"tokens", profile.tokens},
                     {"random_tokens", !profile.has_data},
                     {"fp32_flops_per_second", profile.fp32_flops_per_second},
                     {"bf16_flops_per_second", profile.bf16_flops_per_second},
                     {"copy_bytes_per_second", profile.copy_bytes_per_second},
                     {"step_seconds", seconds},
                     {"median_step_seconds", profile.median_step_seconds},
                     {"disk_bytes", profile.disk_bytes},
                     {"disk_seconds", profile.disk_seconds},
                     {"disk_waited_seconds", profile.disk_waited_seconds},
                     {"ranks", profile.num_ranks},
                     {"exchanges", exchanges_json(profile.exchanges)},
                     {"outside_seconds", profile.outside_seconds},
                     {"outside_share", profile.outside_seconds / seconds},
                     {"model_flops", profile.model_flops},
                     {"mfu", profile.mfu()},
                     {"by_op", rows_json(profile.by_op, seconds)},
                     {"by_segment", rows_json(profile.by_segment, seconds)},
                     {"by_phase", rows_json(profile.by_phase, seconds)},
                     {"calls", rows_json(profile.calls, seconds)}}
      .dump();
}

std::string to_json(const Result& result) {
  OrderedJson settings = OrderedJson::object(), parts = OrderedJson::array();
  for (const auto& [name, value] : result.settings.in_effect()) settings[name] = value;
  for (const PartResult& part : result.parts) {
    parts.push_back({{"name", part.part.name},
                     {"seconds", part.seconds},
                     {"flops", part.part.flops},
                     {"bytes", part.part.bytes},
                     {"peak_share", share_json(part.part.flops, part.peak_share)},
                     {"copy_share", share_json(part.part.bytes, part.copy_share)}});
    if (!part.part.of.empty()) parts.back().update({{"of", part.part.of}, {"ratio", part.ratio}});
  }
  OrderedJson check;
  for (const Check& one : result.checks)
    check = {{"tensor", one.tensor},
             {"relative_error", one.error},
             {"bound", one.bound},
             {"tokens", one.tokens}};
  return OrderedJson{{"kind", result.kind},
                     {"precision", result.precision},
                     {"cpu", result.cpu},
                     {"threads", result.num_threads},
                     {"rounds", result.num_rounds},
                     {"accumulate", result.accumulate},
                     {"clock", result.has_cpu_time ? "cpu" : "wall"},
                     {"settings", settings},
                     {"arena_bytes", result.arena_bytes},
                     {"peak_flops_per_second", result.peak_flops_per_second},
                     {"copy_bytes_per_second", result.copy_bytes_per_second},
                     {"parts", parts},
                     {"check", check}}
      .dump();
}

std::string to_json(const ExchangeResult& result) {
  OrderedJson rows = OrderedJson::array();
  for (const ExchangeRow& row : result.rows) {
    const bool has_mpi = row.mpi_seconds > 0;
    rows.push_back({{"name", row.name},
                    {"bytes", row.bytes},
                    {"received_bytes", row.received_bytes},
                    {"touched_bytes", row.touched_bytes},
                    {"seconds", row.seconds},
                    {"method_seconds", has_mpi ? OrderedJson(row.method_seconds) : OrderedJson()},
                    {"mpi_seconds", has_mpi ? OrderedJson(row.mpi_seconds) : OrderedJson()},
                    {"ratio", has_mpi ? OrderedJson(row.ratio) : OrderedJson()},
                    {"copy_share", row.copy_share}});
  }
  return OrderedJson{{"kind", kExchangeKind},
                     {"ranks", result.num_ranks},
                     {"ranks_are", result.ranks_are},
                     {"rounds", result.num_rounds},
                     {"copy_bytes_per_second", result.copy_bytes_per_second},
                     {"is_checked", result.is_checked},
                     {"rows", rows}}
      .dump();
}

std::string to_json(const std::vector<Part>& parts, const Round& round) {
  OrderedJson seconds = OrderedJson::object();
  for (std::size_t i = 0; i < parts.size(); ++i) seconds[parts[i].name] = round.seconds[i];
  return OrderedJson{{"peak_flops_per_second", round.peak_flops_per_second},
                     {"copy_bytes_per_second", round.copy_bytes_per_second},
                     {"seconds", seconds}}
      .dump();
}

void write_trace(const Profile& profile, const std::filesystem::path& file) {
  io::GzipWriter out(file);
  const std::int64_t origin = profile.steps.empty() ? 0 : profile.steps[0].begin_nanoseconds;
  std::map<std::string, int> tracks;  // of segments; 0 is that of steps
  out.write("{\"displayTimeUnit\":\"ms\",\"traceEvents\":[\n" + track_name(0, "steps").dump());
  for (const std::string& segment : profile.call_segments)
    if (const auto [at, is_new] = tracks.try_emplace(segment, static_cast<int>(tracks.size()) + 1);
        is_new)
      out.write(",\n" + track_name(at->second, segment).dump());
  for (std::size_t i = 0; i < profile.steps.size(); ++i)
    out.write(",\n" + OrderedJson{{"ph", "X"},
                                  {"pid", 1},
                                  {"tid", 0},
                                  {"cat", "step"},
                                  {"name", "step " + std::to_string(i)},
                                  {"ts", microseconds(profile.steps[i].begin_nanoseconds - origin)},
                                  {"dur", microseconds(profile.steps[i].nanoseconds)}}
                          .dump());
  for (const TraceEvent& event : profile.events) {
    const auto call = static_cast<std::size_t>(event.call);
    const ProfileRow& row = profile.calls[call];
    const std::string& segment = profile.call_segments[call];
    const double seconds = std::max(1e-9 * static_cast<double>(event.nanoseconds), 1e-9);
    const double count = std::max(row.calls, 1.0);
    out.write(",\n" + OrderedJson{{"ph", "X"},
                                  {"pid", 1},
                                  {"tid", tracks.at(segment)},
                                  {"cat", segment},
                                  {"name", row.name},
                                  {"ts", microseconds(event.begin_nanoseconds - origin)},
                                  {"dur", microseconds(event.nanoseconds)},
                                  {"args",
                                   {{"kernel", row.kernel},
                                    {"step", event.step},
                                    {"GFLOP/s", 1e-9 * row.flops / count / seconds},
                                    {"GB/s", 1e-9 * row.bytes / count / seconds}}}}
                          .dump());
  }
  out.write("\n]}\n");
  out.close();
}

}  // namespace anabatic::bench
