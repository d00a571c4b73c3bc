// SPDX-License-Identifier: Apache-2.0
// A value in a JSON document that knows where it stands, so that every error names the place.
#pragma once
#include <cstdint>
#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace anabatic {

// Refers to the document, which must outlive it. Getters throw InvalidArgument:
// "[tokenizer] tokenizer.json: model.merges[3]: expected a pair of tokens, got 7".
class JsonNode {
 public:
  // `document` begins the messages, "" leaves it to the caller; `path` is that of the value in it.
  JsonNode(const nlohmann::json& value, std::string document, std::string path = "")
      : value_(&value), document_(std::move(document)), path_(std::move(path)) {}

  const nlohmann::json& value() const { return *value_; }
  const std::string& path() const { return path_; }
  std::string place() const;  // document and path
  std::string place_of(std::string_view key) const;

  bool has(std::string_view key) const;                           // an object with it, even null
  JsonNode at(std::string_view key) const;                        // must be there
  std::optional<JsonNode> find(std::string_view key) const;       // nothing if absent or null
  JsonNode item(std::size_t i) const;                             // of an array that has it
  std::vector<JsonNode> items() const;                            // an array
  std::vector<std::pair<std::string, JsonNode>> members() const;  // an object

  std::string as_string() const;
  std::vector<std::string> as_strings() const;
  bool as_bool() const;
  std::int64_t as_integer(std::int64_t low = INT64_MIN, std::int64_t high = INT64_MAX) const;
  double as_number() const;
  double as_number(double low, double high) const;

  bool bool_or(std::string_view key, bool fallback) const;

  [[noreturn]] void refuse(std::string_view expected) const;  // got what is there
  [[noreturn]] void unsupported(std::string_view what) const;

 private:
  const nlohmann::json* value_;
  std::string document_, path_;
};

}  // namespace anabatic
