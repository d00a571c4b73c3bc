// SPDX-License-Identifier: Apache-2.0
// What a task's rows scored: metrics with their errors, a comparison of two results, and both as
// JSON.
#pragma once
#include <cstdint>
#include <filesystem>
#include <nlohmann/json_fwd.hpp>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "train/tasks/task_file.h"

namespace anabatic::train {

// What is known of each row of a kind, by name: shares are 0 or 1.
std::span<const std::string_view> values_of(TaskKind kind);

struct RowResult {
  std::int64_t line = 0;
  std::string id;                           // Task::id_of
  std::vector<double> values;               // in the order of values_of
  std::vector<double> log_probabilities{};  // of the choices, or of the target
  std::int64_t chosen = -1;                 // of the choices, by log-probability
  std::string generated{};                  // before regex and strip
};

struct TaskResult {
  std::string name, file;
  TaskKind kind = TaskKind::kChoices;
  std::vector<RowResult> rows;
};

struct MetricValue {
  std::string name;
  double value = 0, standard_error = 0;
};
// The first one is the main one, which decides about a drop. Errors are those of a bootstrap over
// the rows, which `seed` draws. Neither depends on the order of the rows.
std::vector<MetricValue> metrics_of(const TaskResult& task, std::uint64_t seed);

// 0 or 1: whether the main metric counts the row as right. Perplexities count none.
bool is_right(const TaskResult& task, const RowResult& row);

struct MetricDifference {
  std::string name;
  double value = 0, other = 0, difference = 0;  // value - other
  double low = 0, high = 0;                     // 95 % of the differences of a paired bootstrap
};
struct TaskComparison {
  std::string name;
  std::vector<MetricDifference> metrics;
  std::vector<std::int64_t> gained, lost;  // lines that only this, or only the other got right
  // By which the main metric is worse: points of a share, percent of the other's bits a byte.
  double drop = 0;
};
// Rows are paired by their ids. InvalidArgument where the results are not of the same rows.
TaskComparison compare(const TaskResult& task, const TaskResult& other, std::uint64_t seed);

nlohmann::ordered_json to_json(const TaskResult& task, std::uint64_t seed);
nlohmann::ordered_json to_json(const TaskComparison& comparison);
// The tasks of what `anabatic evaluate --json` printed. InvalidArgument names FILE and field.
std::vector<TaskResult> read_results(const std::filesystem::path& file);

}  // namespace anabatic::train
