// SPDX-License-Identifier: Apache-2.0
#include "report/run_files.h"

#include <algorithm>
#include <array>
#include <optional>
#include <string>
#include <vector>

#include "base/error.h"
#include "base/json.h"
#include "base/text.h"
#include "io/json_lines.h"
#include "report/series.h"
#include "report/windows.h"

namespace anabatic::report {
namespace {

namespace fs = std::filesystem;

constexpr std::size_t kMostValidations = 1000, kTimedSteps = 1024, kMostListed = 8;
constexpr std::int64_t kMostTextBytes = std::int64_t{4} << 20;

// Numbers of a step's line that a page draws as they are.
constexpr std::array kPlain{"loss",          "aux_loss",    "z_loss",
                            "grad_norm",     "mfu",         "peak_memory_bytes",
                            "learning_rate", "step_time_s", "tokens_per_second",
                            "loss_scale"};

std::optional<double> number(const Json& object, const char* key) {
  const auto found = object.find(key);
  if (found == object.end() || !found->is_number()) return std::nullopt;
  return found->get<double>();
}

std::vector<double> numbers(const Json& object, const char* key) {
  std::vector<double> values;
  const auto found = object.find(key);
  if (found == object.end() || !found->is_array()) return values;
  for (const Json& value : *found)
    if (value.is_number()) values.push_back(value.get<double>());
  return values;
}

// metrics.jsonl, one line at a time.
class Metrics {
 public:
  void add(std::int64_t step, const Json& line) {
    if (num_steps_++ == 0) first_ = step;
    last_ = step;
    for (std::size_t i = 0; i < kPlain.size(); ++i)
      if (line.contains(kPlain[i])) plain_[i].add(step, number(line, kPlain[i]));
    add_experts(step, line);
    tokens_ += number(line, "tokens").value_or(0);
    const double seconds = number(line, "step_time_s").value_or(0);
    seconds_ += seconds;
    if (recent_.size() < kTimedSteps) recent_.push_back(seconds);
    recent_[static_cast<std::size_t>(num_steps_ - 1) % kTimedSteps] = seconds;
    last_loss_ = number(line, "loss");
    peak_ = std::max(peak_, number(line, "peak_memory_bytes").value_or(0));
    planned_ = number(line, "planned_memory_bytes").value_or(planned_);
    const auto skipped = line.find("skipped");
    num_skipped_ += skipped != line.end() && skipped->is_boolean() && skipped->get<bool>();
    num_gaps_ += line.contains("loss") && !last_loss_;
  }

  std::int64_t last_step() const { return last_; }

  OrderedJson totals() const {
    return {{"first_step", first_},
            {"last_step", last_},
            {"num_steps", num_steps_},
            {"tokens", rounded(tokens_)},
            {"seconds", rounded(seconds_)},
            {"step_seconds", rounded(median())},
            {"loss", rounded(last_loss_)},
            {"losses_not_finite", num_gaps_},
            {"skipped", num_skipped_},
            {"peak_bytes", peak_ > 0 ? rounded(peak_) : OrderedJson()},
            {"planned_bytes", planned_ > 0 ? rounded(planned_) : OrderedJson()}};
  }

  OrderedJson series() const {
    OrderedJson json = OrderedJson::object();
    for (std::size_t i = 0; i < kPlain.size(); ++i)
      if (!plain_[i].empty()) json[kPlain[i]] = plain_[i].to_json();
    if (!busiest_.empty()) json["busiest"] = busiest_.to_json();
    if (!idlest_.empty()) json["idlest"] = idlest_.to_json();
    if (!starved_.empty()) json["starved"] = starved_.to_json();
    return json;
  }

 private:
  void add_experts(std::int64_t step, const Json& line) {
    const std::vector<double> most = numbers(line, "expert_load"),
                              least = numbers(line, "expert_load_min"),
                              below = numbers(line, "experts_below_10_percent");
    if (!most.empty()) busiest_.add(step, *std::max_element(most.begin(), most.end()));
    if (!least.empty()) idlest_.add(step, *std::min_element(least.begin(), least.end()));
    if (below.empty()) return;
    double sum = 0;
    for (const double value : below) sum += value;
    starved_.add(step, sum);
  }

  // The median of the last kTimedSteps steps.
  std::optional<double> median() const {
    if (recent_.empty()) return std::nullopt;
    std::vector<double> sorted = recent_;
    const auto middle = sorted.begin() + static_cast<std::ptrdiff_t>(sorted.size() / 2);
    std::nth_element(sorted.begin(), middle, sorted.end());
    return *middle;
  }

  std::array<Series, kPlain.size()> plain_;
  Series busiest_, idlest_, starved_;
  std::int64_t first_ = 0, last_ = 0, num_steps_ = 0, num_gaps_ = 0, num_skipped_ = 0;
  double tokens_ = 0, seconds_ = 0, peak_ = 0, planned_ = 0;
  std::optional<double> last_loss_;
  std::vector<double> recent_;
};

// [[step, loss], ..]: all of them, or each k-th and the last.
OrderedJson validations_json(const fs::path& file, std::int64_t& num_unread) {
  std::vector<std::pair<std::int64_t, std::optional<double>>> points;
  num_unread += io::visit_steps(file, [&](std::int64_t step, const Json& line) {
    points.emplace_back(step, number(line, "loss"));
  });
  const std::size_t every = points.size() / kMostValidations + 1;
  OrderedJson json = OrderedJson::array();
  for (std::size_t i = 0; i < points.size(); ++i)
    if (i % every == 0 || i + 1 == points.size())
      json.push_back({points[i].first, rounded(points[i].second)});
  return {{"every", every}, {"points", std::move(json)}};
}

// The JSON object of a file that may be missing or truncated.
OrderedJson object_of(const fs::path& file) {
  if (!fs::exists(file)) return OrderedJson::object();
  const Json json = try_parse_json(read_file(file, kMostTextBytes));
  return json.is_object() ? OrderedJson(json) : OrderedJson::object();
}

std::string text_of(const fs::path& file) {
  return fs::exists(file) ? read_file(file, kMostTextBytes) : "";
}

std::string listing(const fs::path& directory) {
  std::vector<std::string> names;
  for (const auto& entry : fs::directory_iterator(directory))
    names.push_back(entry.path().filename().string());
  if (names.empty()) return "nothing";
  std::sort(names.begin(), names.end());
  const std::size_t more = names.size() - std::min(names.size(), kMostListed);
  std::string text;
  for (std::size_t i = 0; i + more < names.size(); ++i) text += (i > 0 ? ", " : "") + names[i];
  return more > 0 ? fmt::format("{} and {} more", text, more) : text;
}

bool is_run(const fs::path& directory) {
  return fs::exists(directory / "metrics.jsonl") || fs::exists(directory / "run.json");
}

void require_run(const fs::path& directory) {
  constexpr const char* kExpected =
      "[report] expected a run's directory (train.output), which holds metrics.jsonl and run.json";
  ANABATIC_REQUIRE(fs::exists(directory), "{}; there is no {}", kExpected, directory.string());
  ANABATIC_REQUIRE(fs::is_directory(directory), "{}; {} is a file", kExpected, directory.string());
  if (is_run(directory)) return;
  const fs::path above = fs::absolute(directory).lexically_normal().parent_path();
  throw InvalidArgument(
      fmt::format("{}; {} holds {}{}", kExpected, directory.string(), listing(directory),
                  is_run(above) ? fmt::format("; did you mean {}?", above.string()) : ""));
}

std::string name_of(const fs::path& directory) {
  const fs::path path = fs::absolute(directory).lexically_normal();
  const std::string name = path.filename().string();
  return name.empty() ? path.parent_path().filename().string() : name;
}

// In words: how far the run is.
std::string status_of(const fs::path& directory, std::int64_t last, std::int64_t steps) {
  const std::string done =
      steps > 0 ? fmt::format("step {} of {}", last, steps) : fmt::format("step {}", last);
  if (fs::exists(directory / "run.lock")) return done + ", running or killed (run.lock is there)";
  return steps > 0 && last >= steps ? done + ", done" : done + ", stopped";
}

}  // namespace

OrderedJson read_run(const fs::path& directory) {
  require_run(directory);
  Metrics metrics;
  std::int64_t num_unread =
      io::visit_steps(directory / "metrics.jsonl",
                      [&](std::int64_t step, const Json& line) { metrics.add(step, line); });
  Windows windows;
  num_unread += windows.read(directory / "windows.jsonl");
  OrderedJson record = object_of(directory / "run.json");
  const OrderedJson steps = record.value("steps", OrderedJson());
  OrderedJson json{{"name", name_of(directory)},
                   {"path", fs::absolute(directory).lexically_normal().string()},
                   {"status", status_of(directory, metrics.last_step(),
                                        steps.is_number_integer() ? steps.get<std::int64_t>() : 0)},
                   {"totals", metrics.totals()},
                   {"series", metrics.series()},
                   {"validation", validations_json(directory / "validation.jsonl", num_unread)},
                   {"experts", windows.experts_json()},
                   {"times", windows.times_json()},
                   {"memory", windows.memory_json()},
                   {"record", std::move(record)},
                   {"plan_text", text_of(directory / "plan.txt")}};
  json["lines_not_understood"] = num_unread;
  return json;
}

}  // namespace anabatic::report
