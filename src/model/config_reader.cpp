// SPDX-License-Identifier: Apache-2.0
#include "model/config_reader.h"

#include <fmt/core.h>

#include <algorithm>

#include "base/json.h"

namespace anabatic::model {

std::string shown(const nlohmann::json& value) {
  constexpr std::size_t kLongest = 60;
  // Nested values could be deep enough to exhaust the stack of a recursive printer.
  const bool is_nested = value.is_structured() &&
                         std::any_of(value.begin(), value.end(), [](const nlohmann::json& item) {
                           return item.is_structured();
                         });
  if (is_nested || (value.is_structured() && value.size() > kLongest))
    return fmt::format("{} of {} entries", value.is_array() ? "a list" : "an object", value.size());
  const std::string text = show_json(value);
  return text.size() > kLongest ? text.substr(0, kLongest).append("...") : text;
}

ConfigReader::ConfigReader(const nlohmann::json& object, std::string where)
    : object_(object), where_(std::move(where)) {}

bool ConfigReader::has(const char* key) const {
  const auto found = object_.find(key);
  return found != object_.end() && !found->is_null();
}

bool ConfigReader::is_null(const char* key) const {
  const auto found = object_.find(key);
  return found != object_.end() && found->is_null();
}

const nlohmann::json* ConfigReader::find(const char* key) {
  known_.insert(key);
  const auto found = object_.find(key);
  return found == object_.end() || found->is_null() ? nullptr : &*found;
}

const nlohmann::json* ConfigReader::required(const char* key, const char* kind) {
  known_.insert(key);
  const auto found = object_.find(key);
  if (found == object_.end()) return nullptr;
  if (found->is_null()) {
    mistyped(key, kind, *found);
    return nullptr;
  }
  return &*found;
}

void ConfigReader::mistyped(const char* key, const char* kind, const nlohmann::json& value) {
  invalid(key, fmt::format("expected {}, got {}", kind, shown(value)));
}

std::int64_t ConfigReader::integer(const char* key, std::int64_t fallback, Range range) {
  if (required(key, "an integer") == nullptr) return fallback;
  return optional_integer(key, fallback, range).value_or(fallback);
}

std::optional<std::int64_t> ConfigReader::optional_integer(const char* key,
                                                           std::optional<std::int64_t> fallback,
                                                           Range range) {
  const nlohmann::json* value = find(key);
  if (value == nullptr) return object_.contains(key) ? std::nullopt : fallback;
  if (!value->is_number_integer()) {
    mistyped(key, "an integer", *value);
    return fallback;
  }
  const bool too_large = value->is_number_unsigned() &&
                         value->get<std::uint64_t>() > static_cast<std::uint64_t>(INT64_MAX);
  const std::int64_t number = too_large ? INT64_MAX : value->get<std::int64_t>();
  if (number < range.low || number > range.high) {
    invalid(key, fmt::format("expected an integer from {} to {}, got {}", range.low, range.high,
                             shown(*value)));
    return fallback;
  }
  return number;
}

double ConfigReader::number(const char* key, double fallback, double low, double high) {
  if (required(key, "a number") == nullptr) return fallback;
  return optional_number(key, low, high).value_or(fallback);
}

std::optional<double> ConfigReader::optional_number(const char* key, double low, double high) {
  const nlohmann::json* value = find(key);
  if (value == nullptr) return std::nullopt;
  if (!value->is_number()) {
    mistyped(key, "a number", *value);
    return std::nullopt;
  }
  const double number = value->get<double>();
  if (!(number >= low && number <= high)) {
    invalid(key, fmt::format("expected a number from {} to {}, got {}", low, high, shown(*value)));
    return std::nullopt;
  }
  return number;
}

bool ConfigReader::boolean(const char* key, bool fallback) {
  const nlohmann::json* value = required(key, "true or false");
  if (value == nullptr) return fallback;
  if (!value->is_boolean()) {
    mistyped(key, "true or false", *value);
    return fallback;
  }
  return value->get<bool>();
}

std::string ConfigReader::string(const char* key, const std::string& fallback) {
  const nlohmann::json* value = find(key);
  if (value == nullptr) return fallback;
  if (!value->is_string()) {
    mistyped(key, "a string", *value);
    return fallback;
  }
  return value->get<std::string>();
}

std::vector<std::int64_t> ConfigReader::integers(const char* key, Range range) {
  const nlohmann::json* value = find(key);
  std::vector<std::int64_t> numbers;
  if (value == nullptr) return numbers;
  const auto add = [&](const nlohmann::json& item) {
    const bool fits = item.is_number_integer() &&
                      !(item.is_number_unsigned() &&
                        item.get<std::uint64_t>() > static_cast<std::uint64_t>(INT64_MAX)) &&
                      item.get<std::int64_t>() >= range.low &&
                      item.get<std::int64_t>() <= range.high;
    if (fits) numbers.push_back(item.get<std::int64_t>());
    return fits;
  };
  bool valid = true;
  if (value->is_array()) {
    for (const nlohmann::json& item : *value) valid = valid && add(item);
  } else {
    valid = add(*value);
  }
  if (!valid) {
    invalid(key, fmt::format("expected integers from {} to {}, got {}", range.low, range.high,
                             shown(*value)));
    numbers.clear();
  }
  return numbers;
}

std::vector<std::string> ConfigReader::strings(const char* key) {
  const nlohmann::json* value = find(key);
  std::vector<std::string> texts;
  if (value == nullptr) return texts;
  bool valid = value->is_array();
  if (valid)
    for (const nlohmann::json& item : *value) {
      valid = valid && item.is_string();
      if (valid) texts.push_back(item.get<std::string>());
    }
  if (!valid) {
    mistyped(key, "a list of strings", *value);
    texts.clear();
  }
  return texts;
}

void ConfigReader::know(std::initializer_list<const char*> keys) {
  for (const char* key : keys) known_.insert(key);
}

void ConfigReader::invalid(std::string_view key, const std::string& problem) {
  invalid_.push_back(fmt::format("{}{}: {}", where_, key, problem));
}

void ConfigReader::unsupported(std::string_view key, const std::string& problem) {
  unsupported_.push_back(fmt::format("{}{}: {}", where_, key, problem));
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
  for (const auto& [key, value] : object_.items())
    if (known_.find(key) == known_.end()) keys.push_back(where_ + key);
  return keys;
}

}  // namespace anabatic::model
