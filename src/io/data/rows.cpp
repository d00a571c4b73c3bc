// SPDX-License-Identifier: Apache-2.0
#include "io/data/rows.h"

#include <algorithm>
#include <array>

#include "base/error.h"
#include "io/data/field_names.h"

namespace anabatic::io {
namespace {

struct KindFields {
  RowKind kind;
  std::string_view field;  // that no other kind has
  std::string_view words;
};
constexpr std::array kKinds{
    KindFields{RowKind::kPreference, "chosen", "{\"prompt\", \"chosen\", \"rejected\"}"},
    KindFields{RowKind::kMessages, "messages", "{\"messages\": [{role, content}]}"},
    KindFields{RowKind::kConversations, "conversations", "{\"conversations\": [{from, value}]}"},
    KindFields{RowKind::kCompletion, "completion", "{\"prompt\", \"completion\"}"},
    KindFields{RowKind::kInstruction, "instruction", "{instruction, input, output}"},
    KindFields{RowKind::kText, "text", "{\"text\"}"},
};

const OrderedJson& member(const OrderedJson& object, const char* field, std::string_view of = "") {
  const auto found = object.find(field);
  ANABATIC_REQUIRE(found != object.end(),
                   "expected the field \"{}\"{}, which is missing; the object has {}", field, of,
                   field_names(object));
  return *found;
}

std::string text_of(const OrderedJson& object, const char* field, std::string_view of = "") {
  const OrderedJson& value = member(object, field, of);
  ANABATIC_REQUIRE(value.is_string(), "expected a string in the field \"{}\"{}, got {}", field, of,
                   value.type_name());
  return value.get<std::string>();
}

// What a chat template reads of a message is its own to check.
void check_messages(const OrderedJson& list, const char* field) {
  ANABATIC_REQUIRE(list.is_array() && !list.empty(),
                   "expected a list with at least one message in \"{}\", got {}", field,
                   show_json(list));
  for (std::size_t i = 0; i < list.size(); ++i) {
    const std::string of = fmt::format(" of {}[{}]", field, i);
    ANABATIC_REQUIRE(list[i].is_object(), "expected an object as {}[{}], got {}", field, i,
                     list[i].type_name());
    (void)text_of(list[i], "role", of);
    const auto content = list[i].find("content");
    const bool has_content = content != list[i].end() && !content->is_null();
    ANABATIC_REQUIRE(has_content || list[i].contains("tool_calls"),
                     "expected \"content\" or \"tool_calls\"{}; it has {}", of,
                     field_names(list[i]));
    ANABATIC_REQUIRE(!has_content || content->is_string() || content->is_array(),
                     "expected a string or a list of parts in \"content\"{}, got {}", of,
                     content->type_name());
  }
}

// The first message of the last completion: a turn of the assistant that no user follows.
std::size_t last_completion(const OrderedJson& messages) {
  std::size_t first = messages.size();
  for (std::size_t i = 0; i < messages.size(); ++i)
    if (messages[i]["role"] == "assistant") first = i;
  ANABATIC_REQUIRE(first < messages.size(),
                   "expected a turn of the assistant, got none in {} messages", messages.size());
  return first;
}

TrainingRow chat_of(OrderedJson row, OrderedJson messages) {
  TrainingRow result;
  result.is_chat = true;
  result.first_completion = last_completion(messages);
  row["messages"] = std::move(messages);
  result.chat = std::move(row);
  return result;
}

OrderedJson message_of(std::string role, std::string content) {
  return {{"role", std::move(role)}, {"content", std::move(content)}};
}

// The names of ShareGPT.
std::string role_of(const std::string& from) {
  constexpr std::array<std::pair<std::string_view, std::string_view>, 6> kRoles{
      {{"human", "user"},
       {"gpt", "assistant"},
       {"chatgpt", "assistant"},
       {"bot", "assistant"},
       {"observation", "tool"},
       {"function_response", "tool"}}};
  for (const auto& [name, role] : kRoles)
    if (name == from) return std::string(role);
  return from;
}

void add_system(const OrderedJson& row, OrderedJson& messages) {
  const auto system = row.find("system");
  if (system != row.end() && system->is_string() && !system->get_ref<const std::string&>().empty())
    messages.push_back(message_of("system", system->get<std::string>()));
}

TrainingRow read_conversations(OrderedJson row) {
  const OrderedJson& list = member(row, "conversations");
  ANABATIC_REQUIRE(list.is_array(), "expected a list in \"conversations\", got {}",
                   list.type_name());
  OrderedJson messages = OrderedJson::array();
  add_system(row, messages);
  for (const OrderedJson& turn : list) {
    ANABATIC_REQUIRE(turn.is_object(), "expected objects in \"conversations\", got {}",
                     turn.type_name());
    OrderedJson message = message_of(role_of(text_of(turn, "from")), text_of(turn, "value"));
    for (const char* name : {"weight", "train"})
      if (turn.contains(name)) message[name] = turn[name];
    messages.push_back(std::move(message));
  }
  check_messages(messages, "conversations");
  return chat_of(std::move(row), std::move(messages));
}

TrainingRow read_instruction(OrderedJson row) {
  std::string prompt = text_of(row, "instruction");
  if (const auto input = row.find("input"); input != row.end() && !input->is_null())
    if (const std::string more = text_of(row, "input"); !more.empty()) prompt += "\n\n" + more;
  OrderedJson messages = OrderedJson::array();
  add_system(row, messages);
  messages.push_back(message_of("user", std::move(prompt)));
  messages.push_back(message_of("assistant", text_of(row, "output")));
  return chat_of(std::move(row), std::move(messages));
}

TrainingRow read_completion(OrderedJson row) {
  const OrderedJson &prompt = member(row, "prompt"), &completion = member(row, "completion");
  ANABATIC_REQUIRE(prompt.is_array() == completion.is_array(),
                   "expected \"prompt\" and \"completion\" to be two strings or two lists of "
                   "messages, got {} and {}",
                   prompt.type_name(), completion.type_name());
  if (!prompt.is_array()) {
    TrainingRow result;
    result.text = text_of(row, "prompt");
    result.prompt_bytes = result.text.size();
    const std::string rest = text_of(row, "completion");
    ANABATIC_REQUIRE(!rest.empty(), "expected a text in \"completion\", got an empty one");
    result.text += rest;
    return result;
  }
  check_messages(prompt, "prompt");
  check_messages(completion, "completion");
  OrderedJson messages = prompt;
  for (const OrderedJson& message : completion) messages.push_back(message);
  const std::size_t first = prompt.size();
  TrainingRow result = chat_of(std::move(row), std::move(messages));
  result.first_completion = first;
  return result;
}

// Moves the messages that both completions begin with to the prompt.
void take_common_prompt(PreferenceRow& row) {
  std::size_t count = 0;
  const std::size_t most = std::min(row.chosen.size(), row.rejected.size());
  while (count < most && row.chosen[count] == row.rejected[count]) ++count;
  ANABATIC_REQUIRE(count > 0 && count < most,
                   "expected a \"prompt\", or messages that \"chosen\" and \"rejected\" both "
                   "begin with and others after them, got {} common ones of {} and {}",
                   count, row.chosen.size(), row.rejected.size());
  row.prompt = OrderedJson(row.chosen.begin(), row.chosen.begin() + static_cast<long>(count));
  for (OrderedJson* list : {&row.chosen, &row.rejected})
    list->erase(list->begin(), list->begin() + static_cast<long>(count));
}

}  // namespace

std::string_view describe(RowKind kind) {
  for (const KindFields& fields : kKinds)
    if (fields.kind == kind) return fields.words;
  return "";
}

OrderedJson parse_row(std::string_view record) {
  OrderedJson row;
  try {
    row = OrderedJson::parse(record);
  } catch (const OrderedJson::exception& error) {
    throw InvalidArgument(fmt::format("expected a JSON object, got: {}", error.what()));
  }
  ANABATIC_REQUIRE(row.is_object(), "expected a JSON object, got {}{}", row.type_name(),
                   row.is_array() ? "; data.format: json reads a file that is one array" : "");
  return row;
}

RowKind kind_of_row(const OrderedJson& row) {
  const KindFields* found = nullptr;
  for (const KindFields& fields : kKinds) {
    const auto field = row.find(fields.field);
    if (field == row.end() || field->is_null()) continue;
    ANABATIC_REQUIRE(found == nullptr || fields.kind == RowKind::kText,
                     "expected one kind of row, got both {} and {}",
                     found == nullptr ? "" : found->words, fields.words);
    // Datasets keep a rendering of their messages as "text".
    if (found == nullptr) found = &fields;
  }
  if (found == nullptr) {
    std::string kinds;
    for (const KindFields& fields : kKinds)
      kinds += fmt::format("{}{}", kinds.empty() ? "" : ", ", fields.words);
    throw InvalidArgument(
        fmt::format("expected one of {}; the object has {}", kinds, field_names(row)));
  }
  ANABATIC_REQUIRE(found->kind != RowKind::kMessages || !row.contains("prompt"),
                   "expected one kind of row, got both \"messages\" and \"prompt\"");
  return found->kind;
}

TrainingRow read_row(OrderedJson row, RowKind kind, const std::string& text_field) {
  switch (kind) {
    case RowKind::kText: {
      TrainingRow result;
      result.text = text_of(row, text_field.c_str());
      return result;
    }
    case RowKind::kMessages: {
      OrderedJson messages = member(row, "messages");
      check_messages(messages, "messages");
      return chat_of(std::move(row), std::move(messages));
    }
    case RowKind::kConversations:
      return read_conversations(std::move(row));
    case RowKind::kInstruction:
      return read_instruction(std::move(row));
    case RowKind::kCompletion:
      return read_completion(std::move(row));
    case RowKind::kPreference:
      break;
  }
  throw InvalidArgument(
      fmt::format("expected a row to fine-tune on, got {}", describe(RowKind::kPreference)));
}

PreferenceRow read_preference(OrderedJson row) {
  PreferenceRow result{
      .prompt = nullptr, .chosen = member(row, "chosen"), .rejected = member(row, "rejected")};
  result.is_chat = result.chosen.is_array();
  const auto prompt = row.find("prompt");
  const bool has_prompt = prompt != row.end() && !prompt->is_null();
  if (has_prompt) result.prompt = *prompt;
  ANABATIC_REQUIRE(result.rejected.is_array() == result.is_chat &&
                       (!has_prompt || result.prompt.is_array() == result.is_chat),
                   "expected \"prompt\", \"chosen\" and \"rejected\" to be strings or lists of "
                   "messages, all of them, got {}, {} and {}",
                   has_prompt ? result.prompt.type_name() : "nothing", result.chosen.type_name(),
                   result.rejected.type_name());
  ANABATIC_REQUIRE(result.chosen != result.rejected,
                   "expected \"chosen\" and \"rejected\" to differ, got the same twice");
  if (!result.is_chat) {
    result.prompt = text_of(row, "prompt", ", as both completions are texts");
    for (const char* field : {"chosen", "rejected"})
      ANABATIC_REQUIRE(!text_of(row, field).empty(), "expected a text in \"{}\", got an empty one",
                       field);
    return result;
  }
  check_messages(result.chosen, "chosen");
  check_messages(result.rejected, "rejected");
  if (has_prompt)
    check_messages(result.prompt, "prompt");
  else
    take_common_prompt(result);
  for (const OrderedJson* list : {&result.prompt, &result.chosen, &result.rejected})
    for (const OrderedJson& message : *list)
      ANABATIC_REQUIRE(!message.contains("weight") && !message.contains("train"),
                       "expected no \"weight\" or \"train\" in a message of a pair, whose "
                       "completions count whole; it has {}",
                       field_names(message));
  for (const char* field : {"prompt", "chosen", "rejected"}) row.erase(field);
  result.others = std::move(row);
  return result;
}

}  // namespace anabatic::io
