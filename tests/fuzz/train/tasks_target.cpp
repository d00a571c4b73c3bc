// SPDX-License-Identifier: Apache-2.0
// A file of tasks is rows of one kind that can be scored, or its problems are named.
#include <algorithm>

#include "fuzz/fuzz_target.h"
#include "train/tasks/task_file.h"

using namespace anabatic;

namespace {

void check_row(const train::Task& task, const train::TaskRow& row) {
  const bool is_text = task.kind == train::TaskKind::kText;
  fuzz::require(row.line >= 1, "a line of the file");
  fuzz::require(row.choices.empty() == is_text, "choices, unless it is a text");
  fuzz::require(
      is_text || (0 <= row.answer && row.answer < static_cast<std::int64_t>(row.choices.size())),
      "an answer among the choices");
  const bool may_be_empty = task.kind == train::TaskKind::kGenerate;
  fuzz::require(may_be_empty || std::none_of(row.choices.begin(), row.choices.end(),
                                             [](const std::string& text) { return text.empty(); }),
                "choices with a text");
  fuzz::require(task.context_of(row).ends_with(row.context), "a context after its shots");
  fuzz::require(task.id_of(row).size() == 16, "an id of 64 bits");
}

void check(const train::Task& task) {
  fuzz::require(!task.rows.empty(), "at least one row");
  // Every row has all shots before it: as many as keep that short.
  const std::size_t count = std::min<std::size_t>(task.rows.size(), 3);
  for (std::size_t i = 0; i < count; ++i) check_row(task, task.rows[i]);
}

}  // namespace

int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  const std::string_view text = fuzz::view(data, size);
  return fuzz::read_or_refuse(
      text, [&] { return train::parse_task("tasks.jsonl", text); }, check);
}
