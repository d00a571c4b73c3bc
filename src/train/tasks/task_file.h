// SPDX-License-Identifier: Apache-2.0
// Files of tasks that an evaluation scores: JSONL, one kind of row a file, perhaps after a header.
#pragma once
#include <cstdint>
#include <filesystem>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace anabatic::train {

enum class TaskKind : std::uint8_t {
  kChoices,   // {"context", "choices", "answer"}: which choice is the likeliest
  kTarget,    // {"context", "target"}: how likely it is, and whether greedy decoding gives it
  kGenerate,  // {"prompt", "answer", "stop"?, "regex"?}: whether that is what comes out
  kText       // {"text"}: perplexity
};
std::string_view to_string(TaskKind kind);

struct TaskRow {
  std::int64_t line = 0;             // of the file, from 1
  std::string context;               // or the prompt, or the text
  std::vector<std::string> choices;  // else the target, or the answer, alone
  std::int64_t answer = 0;           // of the choices
  std::vector<std::string> stop{};
  std::string regex{};
};

struct Task {
  std::filesystem::path path;
  std::string name;
  TaskKind kind = TaskKind::kChoices;
  std::string delimiter = " ";          // between a context and what follows it
  std::string shot_delimiter = "\n\n";  // after each shot
  // What the model reads is a user's message, and what follows is the assistant's, without
  // delimiter.
  bool is_chat = false;
  std::vector<TaskRow> shots, rows;

  // What the model reads before a row's choices: the shots with their answers, then the context.
  std::string context_of(const TaskRow& row) const;
  // What a choice begins with.
  std::string_view delimiter_of_choices() const {
    return is_chat ? std::string_view() : std::string_view(delimiter);
  }
  // Tells rows apart: a hash of all that decides a row's result.
  std::string id_of(const TaskRow& row) const;
};

// Reads the files. One InvalidArgument for all of them, with the first ten problems as FILE:LINE,
// what was expected and what was found.
std::vector<Task> load_tasks(std::span<const std::string> paths);
// The same of a file's text.
Task parse_task(const std::filesystem::path& path, std::string_view text);

}  // namespace anabatic::train
