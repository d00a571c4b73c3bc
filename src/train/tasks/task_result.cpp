// SPDX-License-Identifier: Apache-2.0
#include "train/tasks/task_result.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <map>
#include <numbers>
#include <numeric>
#include <optional>

#include "base/error.h"
#include "base/json.h"
#include "base/philox.h"
#include "base/text.h"

namespace anabatic::train {
namespace {

constexpr std::array<std::string_view, 3> kOfChoices{"acc", "acc_norm", "acc_bytes"};
constexpr std::array<std::string_view, 2> kOfTarget{"greedy_match", "log_likelihood"};
constexpr std::array<std::string_view, 1> kOfGenerate{"exact_match"};
constexpr std::array<std::string_view, 3> kOfText{"log_likelihood", "words", "bytes"};

enum class Form : std::uint8_t { kMean, kPerplexity, kBits };

// A sum of values over the rows, divided by that of others, or by the number of rows.
struct Metric {
  std::string_view name;
  std::size_t numerator;
  std::optional<std::size_t> denominator;
  Form form;
};
const std::array<Metric, 3> kMetricsOfText{{
    {"bits_per_byte", 0, 2, Form::kBits},
    {"word_perplexity", 0, 1, Form::kPerplexity},
    {"byte_perplexity", 0, 2, Form::kPerplexity},
}};

std::vector<Metric> metrics_of_kind(TaskKind kind) {
  if (kind == TaskKind::kText) return {kMetricsOfText.begin(), kMetricsOfText.end()};
  std::vector<Metric> metrics;
  for (std::size_t i = 0; i < values_of(kind).size(); ++i)
    metrics.push_back({values_of(kind)[i], i, std::nullopt, Form::kMean});
  return metrics;
}

using Values = std::vector<double>;  // of a row

double value_of(const Metric& metric, double numerator, double denominator) {
  const double mean = numerator / denominator;
  switch (metric.form) {
    case Form::kPerplexity:
      return std::exp(-mean);
    case Form::kBits:
      return -mean / std::numbers::ln2;
    default:
      return mean;
  }
}

// Over rows[picks[i]] for all i, in that order; `first` is where the metric's values begin in a
// row's.
double value_over(const Metric& metric, const std::vector<Values>& rows,
                  std::span<const std::size_t> picks, std::size_t first = 0) {
  double numerator = 0, denominator = 0;
  for (const std::size_t pick : picks) {
    numerator += rows[pick][first + metric.numerator];
    denominator += metric.denominator ? rows[pick][first + *metric.denominator] : 1.0;
  }
  return value_of(metric, numerator, denominator);
}

std::vector<std::size_t> all_of(std::size_t count) {
  std::vector<std::size_t> all(count);
  std::iota(all.begin(), all.end(), std::size_t{0});
  return all;
}

constexpr int kReplicas = 1000;

// Calls use(picks) for each replica of so many rows.
template <class Use>
void bootstrap(std::size_t num_rows, std::uint64_t seed, Use&& use) {
  const std::uint64_t stream = stream_of("evaluate.bootstrap");
  std::vector<std::size_t> picks(num_rows);
  for (int replica = 0; replica < kReplicas; ++replica) {
    for (std::size_t i = 0; i < num_rows; ++i)
      picks[i] = static_cast<std::size_t>(
          random_below(seed, stream, static_cast<std::uint64_t>(replica) * num_rows + i, num_rows));
    use(picks);
  }
}

double standard_deviation(const std::vector<double>& values) {
  const double count = static_cast<double>(values.size());
  const double mean = std::accumulate(values.begin(), values.end(), 0.0) / count;
  double squares = 0;
  for (const double value : values) squares += (value - mean) * (value - mean);
  return std::sqrt(squares / (count - 1));
}

// Rows by their values: whatever their order in the file, sums have one order.
std::vector<Values> sorted_values(const TaskResult& task) {
  std::vector<Values> rows;
  for (const RowResult& row : task.rows) rows.push_back(row.values);
  std::sort(rows.begin(), rows.end());
  return rows;
}

// Rows of both results with equal ids, in the order of the file; equal rows in theirs.
std::vector<const RowResult*> paired_rows(const TaskResult& task, const TaskResult& other) {
  std::map<std::string_view, std::vector<const RowResult*>> by_id;
  for (auto row = other.rows.rbegin(); row != other.rows.rend(); ++row)
    by_id[row->id].push_back(&*row);
  std::vector<const RowResult*> paired;
  std::int64_t missing = 0;
  for (const RowResult& row : task.rows) {
    std::vector<const RowResult*>& same = by_id[row.id];
    if (same.empty()) {
      ++missing;
    } else {
      paired.push_back(same.back());
      same.pop_back();
    }
  }
  ANABATIC_REQUIRE(missing == 0 && task.rows.size() == other.rows.size(),
                   "[evaluate] task '{}': expected a result of the same {} rows to compare with, "
                   "found one of {} rows, of which {} are missing",
                   task.name, task.rows.size(), other.rows.size(), missing);
  return paired;
}

class ResultReader {
 public:
  explicit ResultReader(const std::filesystem::path& file) : file_(file.string()) {}

  std::vector<TaskResult> read() {
    const Json all = parse_json_object(read_file(file_), fmt::format("[evaluate] {}", file_));
    std::vector<TaskResult> results;
    for (const Json& task : list(all, "tasks", "the result of evaluate --tasks --json"))
      results.push_back(read_task(task));
    return results;
  }

 private:
  const Json& list(const Json& object, const char* name, std::string_view expected) const {
    const auto found = object.is_object() ? object.find(name) : object.end();
    ANABATIC_REQUIRE(object.is_object() && found != object.end() && found->is_array(),
                     "[evaluate] {}: expected {} with a list '{}', found {}", file_, expected, name,
                     show_json_briefly(object));
    return *found;
  }
  std::string text(const Json& object, const char* name) const {
    const auto found = object.is_object() ? object.find(name) : object.end();
    ANABATIC_REQUIRE(object.is_object() && found != object.end() && found->is_string(),
                     "[evaluate] {}: expected a text '{}', found {}", file_, name,
                     show_json_briefly(object));
    return found->get<std::string>();
  }

  TaskResult read_task(const Json& task) const {
    TaskResult result;
    result.name = text(task, "name");
    result.file = text(task, "file");
    const std::string kind = text(task, "kind");
    bool is_known = false;
    for (const TaskKind known :
         {TaskKind::kChoices, TaskKind::kTarget, TaskKind::kGenerate, TaskKind::kText})
      if (to_string(known) == kind) {
        result.kind = known;
        is_known = true;
      }
    ANABATIC_REQUIRE(is_known, "[evaluate] {}: expected a kind of task, found '{}'", file_, kind);
    for (const Json& row : list(task, "row_results", "a task")) {
      RowResult read;
      read.id = text(row, "id");
      for (const std::string_view name : values_of(result.kind)) {
        const auto value = row.find(std::string(name));
        ANABATIC_REQUIRE(value != row.end() && value->is_number(),
                         "[evaluate] {}: task '{}': expected a number '{}' in each row, found {}",
                         file_, result.name, name, show_json_briefly(row));
        read.values.push_back(value->get<double>());
      }
      result.rows.push_back(std::move(read));
    }
    return result;
  }

  std::string file_;
};

}  // namespace

std::span<const std::string_view> values_of(TaskKind kind) {
  switch (kind) {
    case TaskKind::kChoices:
      return kOfChoices;
    case TaskKind::kTarget:
      return kOfTarget;
    case TaskKind::kGenerate:
      return kOfGenerate;
    default:
      return kOfText;
  }
}

std::vector<MetricValue> metrics_of(const TaskResult& task, std::uint64_t seed) {
  const std::vector<Metric> metrics = metrics_of_kind(task.kind);
  const std::vector<Values> rows = sorted_values(task);
  std::vector<std::vector<double>> replicas(metrics.size());
  bootstrap(rows.size(), seed, [&](std::span<const std::size_t> picks) {
    for (std::size_t i = 0; i < metrics.size(); ++i)
      replicas[i].push_back(value_over(metrics[i], rows, picks));
  });
  std::vector<MetricValue> values;
  for (std::size_t i = 0; i < metrics.size(); ++i)
    values.push_back({std::string(metrics[i].name),
                      value_over(metrics[i], rows, all_of(rows.size())),
                      standard_deviation(replicas[i])});
  return values;
}

bool is_right(const TaskResult& task, const RowResult& row) {
  return task.kind != TaskKind::kText && row.values.front() == 1;
}

TaskComparison compare(const TaskResult& task, const TaskResult& other, std::uint64_t seed) {
  ANABATIC_REQUIRE(task.kind == other.kind,
                   "[evaluate] task '{}': expected a result of the kind {} to compare with, found "
                   "one of the kind {}",
                   task.name, to_string(task.kind), to_string(other.kind));
  const std::vector<const RowResult*> others = paired_rows(task, other);
  TaskComparison result{.name = task.name, .metrics = {}, .gained = {}, .lost = {}};
  std::vector<Values> rows;
  for (std::size_t i = 0; i < others.size(); ++i) {
    const RowResult& row = task.rows[i];
    const bool right = is_right(task, row), other_right = is_right(other, *others[i]);
    if (right && !other_right) result.gained.push_back(row.line);
    if (!right && other_right) result.lost.push_back(row.line);
    rows.push_back(row.values);
    rows.back().insert(rows.back().end(), others[i]->values.begin(), others[i]->values.end());
  }
  std::sort(rows.begin(), rows.end());
  const std::size_t of_other = values_of(task.kind).size();
  const std::vector<std::size_t> all = all_of(rows.size());
  const std::vector<Metric> metrics = metrics_of_kind(task.kind);
  std::vector<std::vector<double>> replicas(metrics.size());
  bootstrap(rows.size(), seed, [&](std::span<const std::size_t> picks) {
    for (std::size_t i = 0; i < metrics.size(); ++i)
      replicas[i].push_back(value_over(metrics[i], rows, picks) -
                            value_over(metrics[i], rows, picks, of_other));
  });
  for (std::size_t i = 0; i < metrics.size(); ++i) {
    std::sort(replicas[i].begin(), replicas[i].end());
    MetricDifference metric{.name = std::string(metrics[i].name),
                            .value = value_over(metrics[i], rows, all),
                            .other = value_over(metrics[i], rows, all, of_other)};
    metric.difference = metric.value - metric.other;
    metric.low = replicas[i][kReplicas / 40];
    metric.high = replicas[i][kReplicas - 1 - kReplicas / 40];
    result.metrics.push_back(metric);
  }
  const MetricDifference& main = result.metrics.front();
  result.drop =
      task.kind == TaskKind::kText ? 100 * main.difference / main.other : -100 * main.difference;
  return result;
}

nlohmann::ordered_json to_json(const TaskResult& task, std::uint64_t seed) {
  OrderedJson json{{"name", task.name},
                   {"kind", std::string(to_string(task.kind))},
                   {"file", task.file},
                   {"rows", task.rows.size()}};
  for (const MetricValue& metric : metrics_of(task, seed))
    json["metrics"][metric.name] = {{"value", metric.value},
                                    {"standard_error", metric.standard_error}};
  json["row_results"] = OrderedJson::array();
  for (const RowResult& row : task.rows) {
    OrderedJson out{{"line", row.line}, {"id", row.id}};
    for (std::size_t i = 0; i < row.values.size(); ++i)
      out[std::string(values_of(task.kind)[i])] = row.values[i];
    if (task.kind == TaskKind::kChoices) {
      out["chosen"] = row.chosen;
      out["log_probabilities"] = row.log_probabilities;
    }
    if (task.kind == TaskKind::kGenerate) out["generated"] = row.generated;
    json["row_results"].push_back(std::move(out));
  }
  return json;
}

nlohmann::ordered_json to_json(const TaskComparison& comparison) {
  OrderedJson json{{"name", comparison.name}};
  for (const MetricDifference& metric : comparison.metrics)
    json["metrics"][metric.name] = {{"value", metric.value},
                                    {"other", metric.other},
                                    {"difference", metric.difference},
                                    {"interval", {metric.low, metric.high}}};
  json["gained"] = comparison.gained;
  json["lost"] = comparison.lost;
  json["drop"] = comparison.drop;
  return json;
}

std::vector<TaskResult> read_results(const std::filesystem::path& file) {
  return ResultReader(file).read();
}

}  // namespace anabatic::train
