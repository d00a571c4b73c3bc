// SPDX-License-Identifier: Apache-2.0
#include "base/json_node.h"

#include "base/error.h"
#include "base/json.h"

namespace anabatic {
namespace {

std::string joined(const std::string& first, std::string_view separator, std::string_view second) {
  if (first.empty() || second.empty()) return first + std::string(second);
  return fmt::format("{}{}{}", first, separator, second);
}

}  // namespace

std::string JsonNode::place() const { return joined(document_, ": ", path_); }

std::string JsonNode::place_of(std::string_view key) const {
  return joined(document_, ": ", joined(path_, ".", key));
}

bool JsonNode::has(std::string_view key) const {
  return value_->is_object() && value_->contains(key);
}

JsonNode JsonNode::at(std::string_view key) const {
  if (!value_->is_object()) refuse("an object");
  const auto found = value_->find(key);
  ANABATIC_REQUIRE(found != value_->end(), "{}: expected a field `{}`, got none", place(), key);
  return {*found, document_, joined(path_, ".", key)};
}

std::optional<JsonNode> JsonNode::find(std::string_view key) const {
  if (!value_->is_object()) refuse("an object");
  const auto found = value_->find(key);
  if (found == value_->end() || found->is_null()) return std::nullopt;
  return JsonNode(*found, document_, joined(path_, ".", key));
}

JsonNode JsonNode::item(std::size_t i) const {
  return {value_->at(i), document_, fmt::format("{}[{}]", path_, i)};
}

std::vector<JsonNode> JsonNode::items() const {
  if (!value_->is_array()) refuse("a list");
  std::vector<JsonNode> nodes;
  nodes.reserve(value_->size());
  for (std::size_t i = 0; i < value_->size(); ++i) nodes.push_back(item(i));
  return nodes;
}

std::vector<std::pair<std::string, JsonNode>> JsonNode::members() const {
  if (!value_->is_object()) refuse("an object");
  std::vector<std::pair<std::string, JsonNode>> nodes;
  for (const auto& [key, value] : value_->items())
    nodes.emplace_back(key, JsonNode(value, document_, joined(path_, ".", key)));
  return nodes;
}

std::string JsonNode::as_string() const {
  if (!value_->is_string()) refuse("a string");
  return value_->get<std::string>();
}

std::vector<std::string> JsonNode::as_strings() const {
  std::vector<std::string> strings;
  for (const JsonNode& node : items()) strings.push_back(node.as_string());
  return strings;
}

bool JsonNode::as_bool() const {
  if (!value_->is_boolean()) refuse("true or false");
  return value_->get<bool>();
}

std::int64_t JsonNode::as_integer(std::int64_t low, std::int64_t high) const {
  if (!value_->is_number_integer()) refuse("an integer");
  const bool is_too_large = value_->is_number_unsigned() &&
                            value_->get<std::uint64_t>() > static_cast<std::uint64_t>(INT64_MAX);
  const auto number = value_->get<std::int64_t>();
  if (is_too_large || number < low || number > high)
    refuse(fmt::format("an integer from {} to {}", low, high));
  return number;
}

double JsonNode::as_number() const {
  if (!value_->is_number()) refuse("a number");
  return value_->get<double>();
}

double JsonNode::as_number(double low, double high) const {
  const double number = as_number();
  if (!(number >= low && number <= high)) refuse(fmt::format("a number from {} to {}", low, high));
  return number;
}

bool JsonNode::bool_or(std::string_view key, bool fallback) const {
  const auto node = find(key);
  return node ? node->as_bool() : fallback;
}

void JsonNode::refuse(std::string_view expected) const {
  throw InvalidArgument(
      fmt::format("{}: expected {}, got {}", place(), expected, show_json_briefly(*value_)));
}

void JsonNode::unsupported(std::string_view what) const {
  throw Unsupported(fmt::format("{}: {} is not supported", place(), what));
}

}  // namespace anabatic
