// SPDX-License-Identifier: Apache-2.0
#include "train/record/windows_log.h"

#include <algorithm>

#include "base/json.h"

namespace anabatic::train {
namespace {

std::filesystem::path kept_file(const std::filesystem::path& output, std::int64_t last_step) {
  const std::filesystem::path file = output / kWindowsFile;
  io::keep_steps(file, last_step);
  return file;
}

// Tokens of each expert, by layer.
OrderedJson counts_json(const ExpertCounts& counts) {
  OrderedJson json = OrderedJson::object();
  for (std::size_t i = 0; i < counts.num_layers(); ++i) {
    OrderedJson layer = OrderedJson::array();
    for (const std::int64_t count : counts.of_layer(i)) layer.push_back(count);
    json[std::to_string(counts.layer(i))] = std::move(layer);
  }
  return json;
}

// By unit, of its input and of the gradient of its output.
OrderedJson int8_json(const std::vector<Int8Counts>& counts) {
  OrderedJson json = OrderedJson::object();
  for (const Int8Counts& of : counts)
    json[of.unit][of.of_gradient ? "gradient" : "input"] = {
        {"largest", of.largest}, {"zeroed", of.zeroed}, {"fallback", of.fallback}};
  return json;
}

OrderedJson time_json(const StepWatch& watch, std::int64_t step) {
  OrderedJson segments = OrderedJson::object();
  std::int64_t rest = watch.wall_nanoseconds();
  for (std::size_t i = 0; i < watch.segments().size(); ++i) {
    const std::string& name = watch.segments()[i];
    segments[name.empty() ? "other" : name] = 1e-9 * static_cast<double>(watch.nanoseconds(i));
    rest -= watch.nanoseconds(i);
  }
  return {{"step", step},
          {"seconds", 1e-9 * static_cast<double>(watch.wall_nanoseconds())},
          {"outside_seconds", 1e-9 * static_cast<double>(rest)},
          {"segments", std::move(segments)}};
}

OrderedJson memory_json(const StepWatch& watch, std::int64_t step) {
  OrderedJson positions = OrderedJson::array(), bytes = OrderedJson::array();
  for (const StepWatch::Look& look : watch.looks()) {
    positions.push_back(look.position);
    bytes.push_back(look.bytes);
  }
  return {{"step", step},
          {"num_positions", watch.num_positions()},
          {"positions", std::move(positions)},
          {"bytes", std::move(bytes)}};
}

}  // namespace

WindowsLog::WindowsLog(const std::filesystem::path& output, std::int64_t first_step,
                       std::int64_t last_step, const BoundProgram& program,
                       const ExpertCounts& like)
    : lines_(kept_file(output, first_step - 1)),
      watch_(program),
      sums_(like),
      first_step_(first_step),
      last_step_(last_step),
      length_(std::max<std::int64_t>(1, (last_step - first_step + kMostWindows) / kMostWindows)),
      begin_(first_step),
      end_(first_step - 1) {
  sums_.clear();
}

WindowsLog::Watching::Watching(StepWatch* watch, bool with_memory) : watch_(watch) {
  if (watch_ != nullptr) watch_->begin(with_memory);
}

WindowsLog::Watching::~Watching() {
  if (watch_ != nullptr) watch_->end();
}

WindowsLog::Watching WindowsLog::watch(std::int64_t step) {
  if (step != begin_ + std::min<std::int64_t>(1, length_ - 1)) return {nullptr, false};
  watched_step_ = step;
  return {&watch_, step == std::min(first_step_ + 1, last_step_)};
}

void WindowsLog::add(std::int64_t step, const ExpertCounts& counts,
                     const std::vector<Int8Counts>& int8) {
  end_ = step;
  int8_ = int8;
  for (std::size_t i = 0; i < sums_.values().size(); ++i) sums_.values()[i] += counts.values()[i];
  if (step - begin_ + 1 >= length_) write(step);
}

void WindowsLog::sync() {
  if (end_ >= begin_) write(end_);
  lines_.sync();
}

void WindowsLog::write(std::int64_t step) {
  OrderedJson line{{"step", step}, {"first_step", begin_}};
  if (!sums_.empty()) line["experts"] = counts_json(sums_);
  if (!int8_.empty()) line["int8"] = int8_json(int8_);
  if (watched_step_ > 0) {
    line["time"] = time_json(watch_, watched_step_);
    if (!watch_.looks().empty()) line["memory"] = memory_json(watch_, watched_step_);
  }
  lines_.write(line);
  sums_.clear();
  watched_step_ = 0;
  begin_ = step + 1;
}

std::int64_t WindowsLog::estimate_bytes(std::int64_t num_steps, std::int64_t num_experts_of_layers,
                                        std::int64_t num_int8_units) {
  constexpr std::int64_t kBytesOfLine = 500, kBytesOfCount = 8, kBytesOfUnit = 260;
  return std::clamp<std::int64_t>(num_steps, 0, kMostWindows) *
         (kBytesOfLine + kBytesOfCount * num_experts_of_layers + kBytesOfUnit * num_int8_units);
}

}  // namespace anabatic::train
