// SPDX-License-Identifier: Apache-2.0
#include "model/config_reader.h"

#include <fmt/core.h>

#include <algorithm>

#include "base/error.h"
#include "base/json.h"

namespace anabatic::model {

ConfigReader::ConfigReader(JsonNode object, std::span<const FieldName> names)
    : object_(std::move(object)), names_(names) {
  for (const FieldName& name : names_) {
    if (!name.takes_both || !object_.has(name.own) || !object_.has(name.common)) continue;
    known_.insert(name.common);
    if (object_.at(name.own).value() != object_.at(name.common).value())
      invalid(name.common, fmt::format("expected what {} says, {}, got {}", name.common,
                                       show_json_briefly(object_.at(name.common).value()),
                                       show_json_briefly(object_.at(name.own).value())));
  }
}

std::string_view ConfigReader::name_in_file(std::string_view key) const {
  for (const FieldName& name : names_)
    if (name.common == key)
      return name.takes_both && !object_.has(name.own) && object_.has(name.common) ? name.common
                                                                                   : name.own;
  return key;
}

template <class Read>
auto ConfigReader::collect(const std::optional<JsonNode>& node, const Read& read)
    -> std::optional<decltype(read(*node))> {
  try {
    if (node) return read(*node);
  } catch (const InvalidArgument& error) {
    invalid_.emplace_back(error.what());
  }
  return std::nullopt;
}

bool ConfigReader::has(const char* key) const {
  return object_.find(name_in_file(key)).has_value();
}

bool ConfigReader::is_null(const char* key) const {
  return object_.has(name_in_file(key)) && !has(key);
}

std::optional<JsonNode> ConfigReader::find(const char* key) {
  const std::string_view name = name_in_file(key);
  known_.emplace(name);
  return object_.find(name);
}

std::optional<JsonNode> ConfigReader::present(const char* key) {
  const std::string_view name = name_in_file(key);
  known_.emplace(name);
  return object_.has(name) ? std::optional(object_.at(name)) : std::nullopt;
}

std::int64_t ConfigReader::integer(const char* key, std::int64_t fallback, Range range) {
  return collect(present(key),
                 [&](const JsonNode& node) { return node.as_integer(range.low, range.high); })
      .value_or(fallback);
}

std::optional<std::int64_t> ConfigReader::optional_integer(const char* key,
                                                           std::optional<std::int64_t> fallback,
                                                           Range range) {
  if (is_null(key)) fallback = std::nullopt;
  const auto number = collect(
      find(key), [&](const JsonNode& node) { return node.as_integer(range.low, range.high); });
  return number ? number : fallback;
}

double ConfigReader::number(const char* key, double fallback, double low, double high) {
  return collect(present(key), [&](const JsonNode& node) { return node.as_number(low, high); })
      .value_or(fallback);
}

std::optional<double> ConfigReader::optional_number(const char* key, double low, double high) {
  return collect(find(key), [&](const JsonNode& node) { return node.as_number(low, high); });
}

bool ConfigReader::boolean(const char* key, bool fallback) {
  return collect(present(key), [](const JsonNode& node) { return node.as_bool(); })
      .value_or(fallback);
}

std::string ConfigReader::string(const char* key, const std::string& fallback) {
  return collect(find(key), [](const JsonNode& node) { return node.as_string(); })
      .value_or(fallback);
}

std::vector<std::int64_t> ConfigReader::integers(const char* key, Range range) {
  const auto read = [&](const JsonNode& node) {
    if (node.value().is_number()) return std::vector{node.as_integer(range.low, range.high)};
    if (!node.value().is_array()) node.refuse("an integer or a list of integers");
    std::vector<std::int64_t> numbers;
    for (const JsonNode& item : node.items())
      numbers.push_back(item.as_integer(range.low, range.high));
    return numbers;
  };
  return collect(find(key), read).value_or(std::vector<std::int64_t>{});
}

std::vector<std::string> ConfigReader::strings(const char* key) {
  return collect(find(key), [](const JsonNode& node) { return node.as_strings(); })
      .value_or(std::vector<std::string>{});
}

std::optional<JsonNode> ConfigReader::object(const char* key) {
  return collect(find(key), [](const JsonNode& node) {
    if (!node.value().is_object()) node.refuse("an object or null");
    return node;
  });
}

void ConfigReader::know(std::initializer_list<const char*> keys) {
  for (const char* key : keys) known_.emplace(name_in_file(key));
}

void ConfigReader::invalid(std::string_view key, const std::string& problem) {
  invalid_.push_back(fmt::format("{}: {}", object_.place_of(name_in_file(key)), problem));
}

void ConfigReader::unsupported(std::string_view key, const std::string& problem) {
  unsupported_.push_back(fmt::format("{}: {}", object_.place_of(name_in_file(key)), problem));
}

void ConfigReader::expect(const char* key, std::int64_t value) { expected_[key] = value; }

std::optional<std::int64_t> ConfigReader::expected(std::string_view key) const {
  const auto found = expected_.find(key);
  return found == expected_.end() ? std::nullopt : std::optional(found->second);
}

void ConfigReader::absorb(const ConfigReader& nested) {
  invalid_.insert(invalid_.end(), nested.invalid_.begin(), nested.invalid_.end());
  unsupported_.insert(unsupported_.end(), nested.unsupported_.begin(), nested.unsupported_.end());
}

std::vector<std::string> ConfigReader::unknown_keys() const {
  std::vector<std::string> keys;
  for (const auto& [key, value] : object_.value().items())
    if (known_.find(key) == known_.end()) keys.push_back(object_.place_of(key));
  return keys;
}

std::size_t ConfigReader::num_absent_keys() const {
  return static_cast<std::size_t>(std::ranges::count_if(
      known_, [&](const std::string& key) { return !object_.value().contains(key); }));
}

}  // namespace anabatic::model
