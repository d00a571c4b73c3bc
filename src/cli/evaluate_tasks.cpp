// SPDX-License-Identifier: Apache-2.0
#include "cli/evaluate_tasks.h"

#include <fmt/core.h>

#include <algorithm>
#include <charconv>
#include <cmath>
#include <filesystem>

#include "base/error.h"
#include "base/json.h"
#include "cli/standard_output.h"
#include "train/checkpoint/checkpoint_search.h"
#include "train/tasks/run_tasks.h"

namespace anabatic::cli {
namespace {

using train::Task;
using train::TaskComparison;
using train::TaskResult;

constexpr double kMostDrop = 1.5;

double most_drop_of(const Invocation& invocation) {
  if (!invocation.has("--max_drop")) return kMostDrop;
  const std::string text = invocation.value("--max_drop");
  double number = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), number);
  ANABATIC_REQUIRE(error == std::errc() && end == text.data() + text.size() && number >= 0 &&
                       std::isfinite(number),
                   "[evaluate] --max_drop: expected a number of points >= 0, got '{}'", text);
  return number;
}

// A file of results, unless it is a model's config.json or GGUF.
bool is_result(const std::filesystem::path& other) {
  return !std::filesystem::is_directory(other) && other.extension() == ".json" &&
         other.filename() != "config.json";
}

std::vector<TaskComparison> compare_all(std::span<const TaskResult> results,
                                        std::span<const TaskResult> others,
                                        const std::string& other, std::uint64_t seed) {
  std::vector<TaskComparison> comparisons;
  for (const TaskResult& result : results) {
    const auto found = std::find_if(others.begin(), others.end(), [&](const TaskResult& of_other) {
      return of_other.name == result.name;
    });
    ANABATIC_REQUIRE(found != others.end(),
                     "[evaluate] {}: expected a result of the task '{}', found none", other,
                     result.name);
    comparisons.push_back(compare(result, *found, seed));
  }
  return comparisons;
}

void print_results(std::span<const TaskResult> results, std::uint64_t seed) {
  print_output("{:<20} {:<16} {:>10} {:>10} {:>7}\n", "task", "metric", "value", "+-", "rows");
  for (const TaskResult& result : results)
    for (const train::MetricValue& metric : metrics_of(result, seed))
      print_output("{:<20} {:<16} {:>10.4f} {:>10.4f} {:>7}\n", result.name, metric.name,
                   metric.value, metric.standard_error, result.rows.size());
}

std::string show_lines(const std::vector<std::int64_t>& lines) {
  constexpr std::size_t kMostShown = 10;
  std::string text = std::to_string(lines.size());
  for (std::size_t i = 0; i < std::min(lines.size(), kMostShown); ++i)
    text += fmt::format("{}{}", i == 0 ? ", lines " : ", ", lines[i]);
  return text + (lines.size() > kMostShown ? ", ..." : "");
}

void print_comparison(std::span<const TaskComparison> comparisons, const std::string& other) {
  print_output("\ncompared with {}\n", other);
  print_output("{:<20} {:<16} {:>10} {:>10} {:>11} {:>24}\n", "task", "metric", "value", "other",
               "difference", "95 % interval");
  for (const TaskComparison& task : comparisons) {
    for (const train::MetricDifference& metric : task.metrics)
      print_output("{:<20} {:<16} {:>10.4f} {:>10.4f} {:>+11.4f} {:>24}\n", task.name, metric.name,
                   metric.value, metric.other, metric.difference,
                   fmt::format("[{:+.4f}, {:+.4f}]", metric.low, metric.high));
    if (!task.gained.empty() || !task.lost.empty())
      print_output("{0:<20} rows gained: {1}\n{0:<20} rows lost: {2}\n", task.name,
                   show_lines(task.gained), show_lines(task.lost));
  }
}

}  // namespace

int run_evaluate_tasks(const Invocation& invocation) {
  const train::RunConfig run = train::load_run_config("", invocation.overrides);
  const double most_drop = most_drop_of(invocation);
  const std::int64_t batch_tokens = invocation.integer("--batch_tokens", train::kBatchTokens);
  ANABATIC_REQUIRE(batch_tokens > 0 && batch_tokens <= std::int64_t{1} << 24,
                   "[evaluate] --batch_tokens: expected 1 to 2^24, got {}", batch_tokens);
  const auto seed = static_cast<std::uint64_t>(run.train.seed);
  const std::vector<Task> tasks = train::load_tasks(invocation.options.find("--tasks")->second);
  const std::string other = invocation.has("--compare") ? invocation.value("--compare") : "";
  std::vector<TaskResult> others;
  if (!other.empty() && is_result(other)) others = train::read_results(other);
  const std::vector<TaskResult> results = train::run_tasks(run, tasks, batch_tokens);
  if (!other.empty() && !is_result(other)) {
    train::RunConfig of_other = run;
    of_other.model.path = train::model_path_of(other);
    of_other.model.adapter.clear();  // it is of the first model
    others = train::run_tasks(of_other, tasks, batch_tokens);
  }
  std::vector<TaskComparison> comparisons;
  if (!other.empty()) comparisons = compare_all(results, others, other, seed);
  double drop = 0;
  bool is_worse = false;
  for (const TaskComparison& task : comparisons) {
    drop = std::max(drop, task.drop);
    is_worse |= !(task.drop <= most_drop);
  }
  if (invocation.has("--json")) {
    OrderedJson json{{"model", run.model.path}, {"seed", run.train.seed}};
    for (const TaskResult& result : results) json["tasks"].push_back(to_json(result, seed));
    if (!other.empty()) {
      json["comparison"] = {{"other", other}, {"max_drop", most_drop}, {"drop", drop}};
      for (const TaskComparison& task : comparisons)
        json["comparison"]["tasks"].push_back(to_json(task));
    }
    print_output("{}\n", dump_json(json));
  } else {
    print_results(results, seed);
    if (!other.empty()) print_comparison(comparisons, other);
  }
  if (!is_worse) return 0;
  write_progress(stderr, fmt::format("[evaluate] the largest drop is {:.2f} points, more than "
                                     "--max_drop {}\n",
                                     drop, most_drop));
  return 1;
}

}  // namespace anabatic::cli
