// SPDX-License-Identifier: Apache-2.0
#include "train/tasks/task_file.h"

#include <algorithm>
#include <array>
#include <optional>
#include <set>

#include "base/error.h"
#include "base/json.h"
#include "base/philox.h"
#include "base/text.h"
#include "io/problems.h"
#include "io/tokenizer/regex.h"

namespace anabatic::train {
namespace {

// The fields of a kind of row. The first one tells it from others, together with the second.
struct KindOfRow {
  TaskKind kind;
  std::string_view name;
  std::vector<std::string> required, optional;
};
const std::array<KindOfRow, 4> kKinds{{
    {TaskKind::kChoices, "choices", {"context", "choices", "answer"}, {}},
    {TaskKind::kTarget, "target", {"context", "target"}, {}},
    {TaskKind::kGenerate, "generate", {"prompt", "answer"}, {"stop", "regex"}},
    {TaskKind::kText, "text", {"text"}, {}},
}};
constexpr std::string_view kFormsOfRows =
    "a row with context, choices and answer, with context and target, with prompt and answer, or "
    "with text";
const std::vector<std::string> kOfHeader{"name", "shots", "delimiter", "shot_delimiter", "chat"};

const KindOfRow& form_of(TaskKind kind) {
  return *std::find_if(kKinds.begin(), kKinds.end(),
                       [&](const KindOfRow& row) { return row.kind == kind; });
}

bool holds(const std::vector<std::string>& list, std::string_view word) {
  return std::find(list.begin(), list.end(), word) != list.end();
}

// All problems of all files; the first ones with their text.
class Problems {
 public:
  void add(const std::filesystem::path& path, std::int64_t line, std::string_view expected,
           std::string_view found) {
    if (static_cast<std::int64_t>(texts_.size()) < kMostShown)
      texts_.push_back(fmt::format("{}:{}: expected {}, found {}", io::shown(path.string()), line,
                                   expected, io::shown(found)));
    ++count_;
  }
  std::int64_t count() const { return count_; }
  void throw_if_any() const {
    if (count_ == 0) return;
    std::string text =
        fmt::format("[evaluate] {} problem{} in the tasks", count_, count_ == 1 ? "" : "s");
    for (const std::string& problem : texts_) text += "\n  " + problem;
    if (count_ > kMostShown) text += fmt::format("\n  ... and {} more", count_ - kMostShown);
    throw InvalidArgument(text);
  }

 private:
  static constexpr std::int64_t kMostShown = 10;
  std::vector<std::string> texts_;
  std::int64_t count_ = 0;
};

std::string kind_of(const Json& value) { return show_json_briefly(value); }

class TaskReader {
 public:
  TaskReader(const std::filesystem::path& path, Problems& problems) : problems_(problems) {
    task_.path = path;
    task_.name = path.stem().string();
  }

  Task read(std::string_view text) {
    for (line_ = 1; !text.empty(); ++line_) {
      const std::size_t end = std::min(text.find('\n'), text.size());
      read_line(text.substr(0, end));
      text.remove_prefix(std::min(end + 1, text.size()));
    }
    if (task_.rows.empty() && problems_.count() == 0) {
      line_ = std::max<std::int64_t>(line_ - 1, 1);
      problem("at least one row", "none");
    }
    if (kind_) task_.kind = *kind_;
    if (task_.is_chat && task_.kind == TaskKind::kText) {
      line_ = first_line_;
      problem("rows with context or prompt after chat: true", "a row with text");
    }
    return std::move(task_);
  }

 private:
  void problem(std::string_view expected, std::string_view found) {
    problems_.add(task_.path, line_, expected, found);
  }

  void read_line(std::string_view text) {
    if (text.find_first_not_of(" \t\r") == std::string_view::npos) return;
    Json row;
    try {
      row = parse_json(text);
    } catch (const Json::parse_error& error) {
      return problem("a JSON object", error.what());
    }
    if (!row.is_object()) return problem("a JSON object", kind_of(row));
    const bool is_first = !has_lines_;
    has_lines_ = true;
    const KindOfRow* form = form_of_row(row);
    if (form == nullptr && is_first && is_header(row)) return read_header(row);
    if (form == nullptr) return problem(kFormsOfRows, names_in(row));
    if (std::optional<TaskRow> read = read_row(row, *form)) task_.rows.push_back(std::move(*read));
  }

  static std::string names_in(const Json& row) {
    if (row.empty()) return "no fields";
    std::string names;
    for (const auto& [name, value] : row.items()) names += (names.empty() ? "" : ", ") + name;
    return names;
  }

  static const KindOfRow* form_of_row(const Json& row) {
    for (const KindOfRow& form : kKinds) {
      const std::size_t telling = std::min<std::size_t>(form.required.size(), 2);
      if (std::all_of(form.required.begin(),
                      form.required.begin() + static_cast<std::ptrdiff_t>(telling),
                      [&](const std::string& name) { return row.contains(name); }))
        return &form;
    }
    return nullptr;
  }

  static bool is_header(const Json& row) {
    return std::any_of(kOfHeader.begin(), kOfHeader.end(),
                       [&](const std::string& name) { return row.contains(name); });
  }

  void read_header(const Json& header) {
    for (const auto& [name, value] : header.items())
      if (!holds(kOfHeader, name))
        problem("a header with name, shots, delimiter, shot_delimiter or chat", name);
    if (const auto chat = header.find("chat"); chat != header.end()) {
      if (!chat->is_boolean()) return problem("chat: true or false", kind_of(*chat));
      task_.is_chat = chat->get<bool>();
    }
    take_text(header, "name", task_.name);
    take_text(header, "delimiter", task_.delimiter);
    take_text(header, "shot_delimiter", task_.shot_delimiter);
    const auto shots = header.find("shots");
    if (shots == header.end()) return;
    if (!shots->is_array()) return problem("shots as a list of rows", kind_of(*shots));
    for (const Json& shot : *shots) {
      const KindOfRow* form = shot.is_object() ? form_of_row(shot) : nullptr;
      if (form == nullptr) {
        problem("shots as a list of rows", kind_of(shot));
      } else if (form->kind == TaskKind::kText) {
        problem("shots with an answer", "a row with text");
      } else if (std::optional<TaskRow> row = read_row(shot, *form)) {
        task_.shots.push_back(std::move(*row));
      }
    }
  }

  void take_text(const Json& object, const char* name, std::string& to) {
    const auto found = object.find(name);
    if (found == object.end()) return;
    if (!found->is_string()) return problem(fmt::format("{} as a text", name), kind_of(*found));
    to = found->get<std::string>();
  }

  // A text that is not empty.
  bool take_filled(const Json& row, const char* name, std::string& to) {
    take_text(row, name, to);
    if (row.at(name).is_string() && to.empty())
      problem(fmt::format("{} with a text", name), "\"\"");
    return !to.empty();
  }

  std::optional<TaskRow> read_row(const Json& row, const KindOfRow& form) {
    const std::int64_t before = problems_.count();
    check_names(row, form);
    if (kind_ && *kind_ != form.kind)
      problem(fmt::format("a row of the kind {}, as in line {}", form_of(*kind_).name, first_line_),
              fmt::format("one of the kind {}", form.name));
    if (!kind_) first_line_ = line_;
    if (!kind_) kind_ = form.kind;
    TaskRow result;
    result.line = line_;
    for (const std::string& name : form.required)
      if (!row.contains(name)) {
        problem(name, fmt::format("a row of the kind {} without it", form.name));
        return std::nullopt;
      }
    std::string followed;
    switch (form.kind) {
      case TaskKind::kChoices:
        take_text(row, "context", result.context);
        read_choices(row, result);
        break;
      case TaskKind::kTarget:
        take_text(row, "context", result.context);
        if (take_filled(row, "target", followed)) result.choices = {followed};
        break;
      case TaskKind::kGenerate:
        take_filled(row, "prompt", result.context);
        take_text(row, "answer", followed);
        result.choices = {followed};
        read_stop(row, result);
        read_regex(row, result);
        break;
      case TaskKind::kText:
        take_filled(row, "text", result.context);
        break;
    }
    if (problems_.count() != before) return std::nullopt;
    return result;
  }

  void check_names(const Json& row, const KindOfRow& form) {
    for (const auto& [name, value] : row.items()) {
      if (holds(form.required, name) || holds(form.optional, name)) continue;
      std::string known;
      for (const auto* list : {&form.required, &form.optional})
        for (const std::string& field : *list) known += (known.empty() ? "" : ", ") + field;
      problem(fmt::format("no fields but {}", known), name);
    }
  }

  void read_choices(const Json& row, TaskRow& result) {
    const Json &choices = row.at("choices"), &answer = row.at("answer");
    if (!choices.is_array() || choices.empty())
      return problem("choices as a list of texts", kind_of(choices));
    for (const Json& choice : choices) {
      if (!choice.is_string() || choice.get_ref<const std::string&>().empty())
        return problem("choices as a list of texts that are not empty", kind_of(choice));
      result.choices.push_back(choice.get<std::string>());
    }
    const std::string expected =
        fmt::format("answer as an index from 0 to {}", result.choices.size() - 1);
    if (!answer.is_number_integer()) return problem(expected, kind_of(answer));
    const bool fits =
        answer.is_number_unsigned() ? answer.get<std::uint64_t>() < result.choices.size() : false;
    if (!fits) return problem(expected, kind_of(answer));
    result.answer = answer.get<std::int64_t>();
  }

  void read_stop(const Json& row, TaskRow& result) {
    const auto stop = row.find("stop");
    if (stop == row.end()) return;
    const auto is_text = [](const Json& text) {
      return text.is_string() && !text.get_ref<const std::string&>().empty();
    };
    if (!stop->is_array() || !std::all_of(stop->begin(), stop->end(), is_text))
      return problem("stop as a list of texts that are not empty", kind_of(*stop));
    result.stop = stop->get<std::vector<std::string>>();
  }

  void read_regex(const Json& row, TaskRow& result) {
    take_text(row, "regex", result.regex);
    try {
      const io::tokenizer::Regex compiled(result.regex, "regex");
    } catch (const Unsupported& error) {
      problem("regex as a regular expression of Oniguruma", error.what());
    }
  }

  Problems& problems_;
  Task task_;
  std::int64_t line_ = 1, first_line_ = 0;  // of the row that decided the kind
  std::optional<TaskKind> kind_;
  bool has_lines_ = false;
};

}  // namespace

std::string_view to_string(TaskKind kind) { return form_of(kind).name; }

std::string Task::context_of(const TaskRow& row) const {
  std::string text;
  for (const TaskRow& shot : shots)
    text += shot.context + delimiter + shot.choices[static_cast<std::size_t>(shot.answer)] +
            shot_delimiter;
  return text + row.context;
}

std::string Task::id_of(const TaskRow& row) const {
  // Parts end with a byte that UTF-8 does not have.
  std::string all = context_of(row) + '\xFF' + delimiter + '\xFF';
  for (const std::string& choice : row.choices) all += choice + '\xFF';
  all += std::to_string(row.answer) + '\xFF' + row.regex + '\xFF';
  for (const std::string& stop : row.stop) all += stop + '\xFF';
  if (is_chat) all += '\xFE';
  return fmt::format("{:016x}", stream_of(all));
}

Task parse_task(const std::filesystem::path& path, std::string_view text) {
  Problems problems;
  Task task = TaskReader(path, problems).read(text);
  problems.throw_if_any();
  return task;
}

std::vector<Task> load_tasks(std::span<const std::string> paths) {
  Problems problems;
  std::vector<Task> tasks;
  for (const std::string& path : paths)
    tasks.push_back(TaskReader(path, problems).read(read_file(path)));
  problems.throw_if_any();
  std::set<std::string> names;
  for (const Task& task : tasks)
    ANABATIC_REQUIRE(names.insert(task.name).second,
                     "[evaluate] {}: expected tasks of different names, found '{}' twice",
                     task.path.string(), task.name);
  return tasks;
}

}  // namespace anabatic::train
