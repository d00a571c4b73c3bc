// SPDX-License-Identifier: Apache-2.0
// Scores tasks by a model, as lm-evaluation-harness does (docs/guide/evaluation.md).
#pragma once
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "train/run_config.h"
#include "train/tasks/task_file.h"
#include "train/tasks/task_result.h"

namespace anabatic::train {

// Rows that go through the model together, unless a longer context needs more.
inline constexpr std::int64_t kBatchTokens = 4096;

// The model of run.model.path on each task. InvalidArgument for rows that the model cannot take.
std::vector<TaskResult> run_tasks(const RunConfig& run, std::span<const Task> tasks,
                                  std::int64_t batch_tokens = kBatchTokens);

// The white space at the end of a context belongs to what follows it: (context, continuation).
std::pair<std::string, std::string> move_trailing_space(std::string context,
                                                        std::string continuation);
// As Python's str.strip, for characters of Unicode.
std::string_view strip_space(std::string_view text);
// Runs of white space, and one: what Python's re.split(r"\s+") gives.
std::int64_t count_words(std::string_view text);
std::int64_t count_characters(std::string_view text);

// Whether a generated text is the row's answer, after its regex and without space around it.
bool matches_answer(const TaskRow& row, const std::string& generated);
// The first of the largest.
std::size_t first_largest(std::span<const double> values);

}  // namespace anabatic::train
