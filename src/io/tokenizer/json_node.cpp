// SPDX-License-Identifier: Apache-2.0
#include "io/tokenizer/json_node.h"

#include "base/error.h"
#include "base/json.h"
#include "io/tokenizer/unicode.h"

namespace anabatic::io::tokenizer {
namespace {

std::string join(const std::string& path, std::string_view key) {
  return path.ends_with(':') ? fmt::format("{} {}", path, key) : fmt::format("{}.{}", path, key);
}

// Scalars in full, containers by kind, all short enough for an error line.
std::string describe(const nlohmann::json& value) {
  if (value.is_structured()) return value.is_array() ? "an array" : "an object";
  std::string text = value.dump(-1, ' ', true, nlohmann::json::error_handler_t::replace);
  if (text.size() > 60) text = text.substr(0, 57) + "...";
  return text;
}

}  // namespace

std::string JsonNode::place() const { return path_.ends_with(':') ? path_ : path_ + ":"; }

JsonNode JsonNode::at(std::string_view key) const {
  if (!value_->is_object()) refuse("an object");
  const auto found = value_->find(key);
  if (found == value_->end()) {
    throw InvalidArgument(
        fmt::format("[tokenizer] {} expected a field `{}`, got none", place(), key));
  }
  return {*found, join(path_, key)};
}

std::optional<JsonNode> JsonNode::find(std::string_view key) const {
  if (!value_->is_object()) refuse("an object");
  const auto found = value_->find(key);
  if (found == value_->end() || found->is_null()) return std::nullopt;
  return JsonNode(*found, join(path_, key));
}

std::vector<JsonNode> JsonNode::items() const {
  if (!value_->is_array()) refuse("an array");
  std::vector<JsonNode> nodes;
  nodes.reserve(value_->size());
  for (std::size_t i = 0; i < value_->size(); ++i)
    nodes.emplace_back((*value_)[i], fmt::format("{}[{}]", path_, i));
  return nodes;
}

std::vector<std::pair<std::string, JsonNode>> JsonNode::members() const {
  if (!value_->is_object()) refuse("an object");
  std::vector<std::pair<std::string, JsonNode>> nodes;
  for (const auto& [key, value] : value_->items())
    nodes.emplace_back(key, JsonNode(value, join(path_, key)));
  return nodes;
}

std::string JsonNode::as_string() const {
  if (!value_->is_string()) refuse("a string");
  return value_->get<std::string>();
}

bool JsonNode::as_bool() const {
  if (!value_->is_boolean()) refuse("true or false");
  return value_->get<bool>();
}

std::string JsonNode::as_character() const {
  if (!value_->is_string() || !is_one_character(value_->get_ref<const std::string&>()))
    refuse("a string of one character");
  return value_->get<std::string>();
}

std::int32_t JsonNode::as_id() const {
  if (!value_->is_number_unsigned() ||
      value_->get<std::uint64_t>() > static_cast<std::uint64_t>(kMaxId))
    refuse(fmt::format("an id from 0 to {}", kMaxId));
  return value_->get<std::int32_t>();
}

std::int64_t JsonNode::as_count() const {
  if (!value_->is_number_unsigned() || value_->get<std::uint64_t>() > 0x7FFFFFFFu)
    refuse("a count from 0 to 2147483647");
  return value_->get<std::int64_t>();
}

bool JsonNode::bool_or(std::string_view key, bool fallback) const {
  const auto node = find(key);
  return node ? node->as_bool() : fallback;
}

std::string JsonNode::type() const {
  const auto node = find("type");
  return node ? node->as_string() : "";
}

void JsonNode::refuse(std::string_view expected) const {
  throw InvalidArgument(
      fmt::format("[tokenizer] {} expected {}, got {}", place(), expected, describe(*value_)));
}

void JsonNode::unsupported(std::string_view what) const {
  throw Unsupported(fmt::format("[tokenizer] {} {} is not supported", place(), what));
}

}  // namespace anabatic::io::tokenizer
