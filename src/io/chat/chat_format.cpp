// SPDX-License-Identifier: Apache-2.0
#include "io/chat/chat_format.h"

#include <fmt/ranges.h>

#include <algorithm>
#include <utility>

#include "base/error.h"
#include "base/json.h"
#include "base/text.h"
#include "io/gguf.h"
#include "io/tokenizer/gguf/gguf_tokenizer.h"

namespace anabatic::io {
namespace {

namespace fs = std::filesystem;

constexpr std::int64_t kLargestFile = std::int64_t{1} << 26;

OrderedJson read_json(const fs::path& file) {
  try {
    return OrderedJson::parse(read_file(file, kLargestFile));
  } catch (const OrderedJson::exception& error) {
    throw InvalidArgument(
        fmt::format("[chat template] {}: expected JSON: {}", file.string(), error.what()));
  }
}

// The texts of the tokens that a template may name: members ending in `_token`.
void add_named_tokens(const OrderedJson& config, OrderedJson& tokens) {
  if (!config.is_object()) return;
  for (const auto& [key, value] : config.items()) {
    if (!key.ends_with("_token") || tokens.contains(key)) continue;
    if (value.is_string()) tokens[key] = value;
    if (value.is_object() && value.contains("content") && value["content"].is_string())
      tokens[key] = value["content"];
  }
}

// Null where there is none; find() would make a string of the key.
const OrderedJson* member(const OrderedJson& object, std::string_view key) {
  for (const auto& [name, value] : object.get_ref<const OrderedJson::object_t&>())
    if (name == key) return &value;
  return nullptr;
}

// Messages as transformers hands them to a template: without null fields, and with reasoning under
// each of its names that templates read.
OrderedJson plain_message(OrderedJson&& message, std::size_t i) {
  ANABATIC_REQUIRE(message.is_object(), "[chat] messages[{}]: expected an object, got {}", i,
                   show_json_briefly(Json(message)));
  const OrderedJson* role = member(message, "role");
  ANABATIC_REQUIRE(role && role->is_string(), "[chat] messages[{}].role: expected a text, got {}",
                   i, role ? show_json_briefly(Json(*role)) : "nothing");
  const OrderedJson* reasoning = nullptr;
  for (const char* key : {"reasoning_content", "thinking", "reasoning"})
    if (const OrderedJson* found = member(message, key); !reasoning && found && !found->is_null())
      reasoning = found;
  const auto goes = [](const std::string& key, const OrderedJson& value) {
    return value.is_null() || key == "weight" || key == "train";
  };
  auto& members = message.get_ref<OrderedJson::object_t&>();
  OrderedJson plain;
  if (!reasoning && std::none_of(members.begin(), members.end(), [&](const auto& member) {
        return goes(member.first, member.second);
      })) {
    plain = std::move(message);
  } else {
    const OrderedJson thought = reasoning ? *reasoning : OrderedJson();
    if (reasoning) plain["thinking"] = thought;
    for (auto& [key, value] : members)
      if (!goes(key, value)) plain[key] = std::move(value);
    if (reasoning) plain["reasoning_content"] = thought;
  }
  const OrderedJson* content = member(plain, "content");
  if (!content || !content->is_array()) return plain;
  for (const OrderedJson& part : *content) {
    const bool is_text = part.is_object() && (!part.contains("type") || part["type"] == "text");
    ANABATIC_REQUIRE(is_text, "[chat] messages[{}].content: expected text parts, got {}", i,
                     show_json_briefly(Json(part)));
  }
  return plain;
}

double weight_of(const OrderedJson& message, std::size_t i) {
  const OrderedJson* train = member(message, "train");
  if (train && !train->is_null()) {
    ANABATIC_REQUIRE(train->is_boolean(),
                     "[chat] messages[{}].train: expected true or false, got {}", i,
                     show_json_briefly(Json(*train)));
    if (!train->get<bool>()) return 0;
  }
  const OrderedJson* weight = member(message, "weight");
  if (!weight || weight->is_null()) return 1;
  ANABATIC_REQUIRE(weight->is_number() && weight->get<double>() >= 0,
                   "[chat] messages[{}].weight: expected a number of at least 0, got {}", i,
                   show_json_briefly(Json(*weight)));
  return weight->get<double>();
}

// "user, assistant, tool", each once.
std::string roles_of(const OrderedJson& messages) {
  std::vector<std::string> roles;
  for (const OrderedJson& message : messages)
    if (const auto role = message["role"].get<std::string>();
        std::ranges::find(roles, role) == roles.end())
      roles.push_back(role);
  return fmt::format("{}", fmt::join(roles, ", "));
}

OrderedJson list_or_text(const OrderedJson& row, const char* key) {
  const auto found = row.find(key);
  if (found == row.end() || found->is_null()) return nullptr;
  OrderedJson list = *found;
  if (list.is_string()) list = OrderedJson::parse(found->get<std::string>(), nullptr, false);
  ANABATIC_REQUIRE(list.is_array(), "[chat] {}: expected a list or its JSON text, got {}", key,
                   show_json_briefly(Json(*found)));
  return list;
}

}  // namespace

ChatFormat::ChatFormat(const std::string& source, const std::string& name,
                       const OrderedJson& named_tokens, const RenderTime& now)
    : name_(name),
      source_(source),
      default_(ChatTemplate::parse(source, name)),
      named_tokens_(std::make_shared<const OrderedJson>(named_tokens)),
      now_(now) {}

ChatFormat ChatFormat::load(const fs::path& model, const fs::path& template_file,
                            const RenderTime& now) {
  OrderedJson tokens = OrderedJson::object();
  const auto whole = [&](const fs::path& file) {
    return ChatFormat(read_file(file, kLargestFile), file.string(), tokens, now);
  };
  if (is_gguf(model)) {
    const GgufFiles files = GgufFiles::open(model);
    if (has_gguf_tokenizer(files.metadata()))
      add_named_tokens(OrderedJson::parse(gguf_tokenizer_config(files.metadata())), tokens);
    if (!template_file.empty()) return whole(template_file);
    const std::string source = gguf_chat_template(files.metadata());
    ANABATIC_REQUIRE(!source.empty(),
                     "[chat template] {}: expected the key tokenizer.chat_template, found none; "
                     "data.chat_template names a file",
                     model.string());
    return ChatFormat(source, model.string(), tokens, now);
  }
  for (const char* name : {"tokenizer_config.json", "special_tokens_map.json"})
    if (fs::exists(model / name)) add_named_tokens(read_json(model / name), tokens);
  if (!template_file.empty()) return whole(template_file);
  if (fs::exists(model / "chat_template.jinja")) return whole(model / "chat_template.jinja");
  for (const char* name : {"chat_template.json", "tokenizer_config.json"}) {
    const fs::path file = model / name;
    if (!fs::exists(file)) continue;
    const OrderedJson config = read_json(file);
    const auto found = config.is_object() ? config.find("chat_template") : config.end();
    if (!config.is_object() || found == config.end() || found->is_null()) continue;
    if (found->is_string())
      return ChatFormat(found->get<std::string>(), file.string(), tokens, now);
    // A list of {name, template}, or an object from names to templates.
    std::map<std::string, std::string> named;
    for (const auto& [key, entry] : found->items()) {
      const bool is_pair = entry.is_object() && entry.contains("name") &&
                           entry.contains("template") && entry["name"].is_string() &&
                           entry["template"].is_string();
      ANABATIC_REQUIRE(is_pair || entry.is_string(),
                       "[chat template] {}: chat_template: expected names and templates, got {}",
                       file.string(), show_json_briefly(Json(entry)));
      named[is_pair ? entry["name"].get<std::string>() : key] =
          (is_pair ? entry["template"] : entry).get<std::string>();
    }
    ANABATIC_REQUIRE(named.contains("default"),
                     "[chat template] {}: chat_template: expected one that is named 'default'",
                     file.string());
    ChatFormat format(named["default"], file.string(), tokens, now);
    if (named.contains("tool_use"))
      format.tool_use_ = std::make_unique<ChatTemplate>(
          ChatTemplate::parse(named["tool_use"], file.string() + " (tool_use)"));
    return format;
  }
  throw InvalidArgument(
      fmt::format("[chat template] {}: expected a chat_template.jinja, or a chat_template in "
                  "tokenizer_config.json; data.chat_template names another file",
                  model.string()));
}

std::vector<std::int64_t> ChatFormat::lines_with(const std::vector<std::string>& texts) const {
  std::vector<std::int64_t> lines;
  std::int64_t number = 0;
  for (std::size_t begin = 0; begin < source_.size();) {
    const std::size_t end = std::min(source_.find('\n', begin), source_.size());
    const auto line = std::string_view(source_).substr(begin, end - begin);
    ++number;
    if (std::ranges::any_of(texts, [&](const std::string& text) {
          return line.find(text) != std::string_view::npos;
        }))
      lines.push_back(number);
    begin = end + 1;
  }
  return lines;
}

RenderedChat ChatFormat::render(OrderedJson row, bool add_generation_prompt) const {
  const auto messages = row.find("messages");
  ANABATIC_REQUIRE(messages != row.end() && messages->is_array() && !messages->empty(),
                   "[chat] messages: expected a list with at least one message, got {}",
                   messages == row.end() ? "nothing" : show_json_briefly(Json(*messages)));
  RenderedChat chat;
  auto context = std::make_shared<OrderedJson>(OrderedJson::object());
  OrderedJson plain = OrderedJson::array();
  plain.get_ref<OrderedJson::array_t&>().reserve(messages->size());
  chat.messages.reserve(messages->size());
  for (std::size_t i = 0; i < messages->size(); ++i) {
    ChatMessage& message = chat.messages.emplace_back();
    if ((*messages)[i].is_object()) message.weight = weight_of((*messages)[i], i);
    plain.push_back(plain_message(std::move((*messages)[i]), i));
    message.is_assistant =
        member(plain.back(), "role")->get_ref<const std::string&>() == "assistant";
  }
  (*context)["messages"] = std::move(plain);
  for (const char* key : {"tools", "documents"}) (*context)[key] = list_or_text(row, key);
  (*context)["add_generation_prompt"] = add_generation_prompt;
  for (const auto& [key, value] : named_tokens_->items()) (*context)[key] = value;
  const auto more = row.find("chat_template_kwargs");
  const bool has_variables = more != row.end() && !more->is_null();
  if (has_variables) {
    ANABATIC_REQUIRE(more->is_object(), "[chat] chat_template_kwargs: expected an object, got {}",
                     show_json_briefly(Json(*more)));
    for (const auto& [key, value] : more->items()) (*context)[key] = value;
  }
  const bool has_tools = !(*context)["tools"].is_null();
  const ChatTemplate& chosen = has_tools && tool_use_ ? *tool_use_ : default_;
  try {
    chat.rendered = chosen.render(*context, now_);
  } catch (const InvalidArgument& error) {
    throw InvalidArgument(
        fmt::format("{}; the messages are of {}", error.what(), roles_of((*context)["messages"])));
  }
  chat.has_generation_blocks = chosen.has_generation_blocks();
  if (!chat.has_generation_blocks)
    chat.generation_prompt = generation_prompt(chosen, *context, has_variables);
  chat.context = std::move(context);
  std::size_t begin = 0;
  for (const TextSpan& span : chat.rendered.spans) {
    if (span.message >= 0) {
      ChatMessage& message = chat.messages.at(static_cast<std::size_t>(span.message));
      message.first = std::min(message.first, begin);
      if (span.field && *span.field != "role") {
        if (!message.has_text) {
          message.begin = begin;
          message.begins_with_call = *span.field == "tool_calls";
        }
        message.has_text = true;
        message.end = span.end;
      }
    }
    begin = span.end;
  }
  return chat;
}

std::string ChatFormat::generation_prompt(const ChatTemplate& chosen, const OrderedJson& context,
                                          bool has_variables) const {
  const auto make_probe = [&] {
    OrderedJson probe = {{"messages", OrderedJson::array({{{"role", "user"}, {"content", "x"}}})},
                         {"tools", nullptr},
                         {"documents", nullptr}};
    for (const auto& [key, value] : context.items())
      if (!probe.contains(key)) probe[key] = value;
    return probe;
  };
  const std::string key =
      (&chosen == &default_ ? "" : "tools") + (has_variables ? dump_json(make_probe()) : "");
  const std::lock_guard lock(prompts_->mutex);
  if (const auto known = prompts_->by_variables.find(key); known != prompts_->by_variables.end())
    return known->second;
  std::string prompt;
  OrderedJson probe = make_probe();
  try {
    probe["add_generation_prompt"] = false;
    const std::string without = chosen.render(probe, now_).text;
    probe["add_generation_prompt"] = true;
    const std::string with = chosen.render(probe, now_).text;
    // What ends a conversation otherwise, such as an EOS, gives way to the prompt.
    std::size_t begin = static_cast<std::size_t>(
        std::mismatch(with.begin(), with.end(), without.begin(), without.end()).first -
        with.begin());
    const auto ends_token = [&](char c) { return c == '>' || c == ']' || c == '\n' || c == ' '; };
    if (begin < without.size())
      while (begin > 0 && !ends_token(with[begin - 1])) --begin;
    prompt = with.substr(begin);
  } catch (const InvalidArgument&) {
    // A template that takes no such conversation: turns then begin with their own text.
  }
  prompts_->by_variables[key] = prompt;
  return prompt;
}

std::vector<AddedTokenRange> RenderedChat::added_token_ranges() const {
  std::vector<AddedTokenRange> ranges;
  std::size_t begin = 0;
  for (const TextSpan& span : rendered.spans) {
    if (std::exchange(begin, span.end) == span.end) continue;
    AddedTokenMatch match = AddedTokenMatch::kNone;
    const bool is_message = span.message >= 0;
    if (is_message ? span.field && *span.field == "role" : !span.field)
      match = AddedTokenMatch::kAll;
    else if (is_message && messages[static_cast<std::size_t>(span.message)].is_assistant)
      match = AddedTokenMatch::kNotSpecial;
    if (!ranges.empty() && ranges.back().match == match)
      ranges.back().end = span.end;
    else
      ranges.push_back({span.end, match});
  }
  return ranges;
}

}  // namespace anabatic::io
