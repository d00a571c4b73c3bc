// SPDX-License-Identifier: Apache-2.0
#include "report/windows.h"

#include <algorithm>
#include <cmath>
#include <set>

#include "io/json_lines.h"
#include "report/series.h"

namespace anabatic::report {
namespace {

constexpr std::size_t kMostColumns = 160, kFewestColumns = 24;

double number_or(const Json& object, const char* key, double fallback) {
  const auto found = object.find(key);
  return found != object.end() && found->is_number() ? found->get<double>() : fallback;
}

bool is_counts(const Json& counts) {
  return counts.is_array() && !counts.empty() &&
         std::all_of(counts.begin(), counts.end(),
                     [](const Json& count) { return count.is_number_integer(); });
}

}  // namespace

std::int64_t Windows::read(const std::filesystem::path& file) {
  return io::visit_steps(file, [&](std::int64_t step, const Json& line) {
    if (line.contains("experts") && line["experts"].is_object()) add_experts(step, line);
    if (line.contains("time") && line["time"].is_object()) add_time(line["time"]);
    if (line.contains("memory") && line["memory"].is_object()) memory_ = line["memory"];
  });
}

void Windows::add_experts(std::int64_t step, const Json& line) {
  Window window{
      .first = static_cast<std::int64_t>(number_or(line, "first_step", static_cast<double>(step))),
      .last = step};
  std::vector<std::string> layers;
  for (const auto& [layer, counts] : line["experts"].items()) {
    if (!is_counts(counts)) return;
    layers.push_back(layer);
    window.counts.push_back(counts.get<std::vector<std::int64_t>>());
  }
  if (layers.empty()) return;
  if (windows_.empty()) {
    layers_ = layers;
    num_experts_ = window.counts[0].size();
  }
  const bool is_alike =
      layers == layers_ && std::all_of(window.counts.begin(), window.counts.end(),
                                       [&](const auto& c) { return c.size() == num_experts_; });
  if (is_alike) windows_.push_back(std::move(window));
}

void Windows::add_time(const Json& time) {
  Time result{.step = static_cast<std::int64_t>(number_or(time, "step", 0)),
              .outside = number_or(time, "outside_seconds", 0)};
  const auto segments = time.find("segments");
  if (segments == time.end() || !segments->is_object()) return;
  for (const auto& [name, seconds] : segments->items())
    if (seconds.is_number()) result.segments[name] = seconds.get<double>();
  times_.push_back(std::move(result));
}

// Percent of an even share.
OrderedJson Windows::layer_json(std::size_t layer, std::size_t num_columns) const {
  OrderedJson columns = OrderedJson::array();
  for (std::size_t c = 0; c < num_columns; ++c) {
    std::vector<std::int64_t> sums(num_experts_);
    for (std::size_t w = c * windows_.size() / num_columns;
         w < (c + 1) * windows_.size() / num_columns; ++w)
      for (std::size_t e = 0; e < num_experts_; ++e) sums[e] += windows_[w].counts[layer][e];
    double total = 0;
    for (const std::int64_t sum : sums) total += static_cast<double>(sum);
    OrderedJson column = OrderedJson::array();
    for (const std::int64_t sum : sums)
      column.push_back(total > 0 ? std::llround(100.0 * static_cast<double>(sum) *
                                                static_cast<double>(num_experts_) / total)
                                 : 0);
    columns.push_back(std::move(column));
  }
  return columns;
}

OrderedJson Windows::experts_json(std::size_t most_cells) const {
  if (windows_.empty()) return nullptr;
  const std::size_t most =
      std::clamp(most_cells / (layers_.size() * num_experts_), kFewestColumns, kMostColumns);
  const std::size_t count = std::min(windows_.size(), most);
  OrderedJson columns = OrderedJson::array(), layers = OrderedJson::object();
  for (std::size_t c = 0; c < count; ++c)
    columns.push_back({windows_[c * windows_.size() / count].first,
                       windows_[(c + 1) * windows_.size() / count - 1].last});
  for (std::size_t layer = 0; layer < layers_.size(); ++layer)
    layers[layers_[layer]] = layer_json(layer, count);
  return {{"columns", std::move(columns)}, {"layers", std::move(layers)}};
}

OrderedJson Windows::times_json() const {
  if (times_.empty()) return nullptr;
  std::set<std::string> names;
  for (const Time& time : times_)
    for (const auto& [name, seconds] : time.segments) names.insert(name);
  OrderedJson steps = OrderedJson::array(), outside = steps, segments = OrderedJson::object();
  for (const std::string& name : names) segments[name] = OrderedJson::array();
  for (const Time& time : times_) {
    steps.push_back(time.step);
    outside.push_back(rounded(time.outside));
    for (const std::string& name : names) {
      const auto found = time.segments.find(name);
      segments[name].push_back(rounded(found == time.segments.end() ? 0.0 : found->second));
    }
  }
  return {{"steps", std::move(steps)},
          {"seconds", std::move(segments)},
          {"outside", std::move(outside)}};
}

}  // namespace anabatic::report
