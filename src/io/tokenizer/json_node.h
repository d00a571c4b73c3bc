// SPDX-License-Identifier: Apache-2.0
// A place in a JSON document that knows its path, so that every error names it.
#pragma once
#include <cstdint>
#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace anabatic::io::tokenizer {

// Refers to the document, which must outlive it. All getters throw InvalidArgument naming the path.
class JsonNode {
 public:
  JsonNode(const nlohmann::json& value, std::string path)
      : value_(&value), path_(std::move(path)) {}

  const nlohmann::json& value() const { return *value_; }
  const std::string& path() const { return path_; }

  JsonNode at(std::string_view key) const;                        // must be there
  std::optional<JsonNode> find(std::string_view key) const;       // nothing if absent or null
  std::vector<JsonNode> items() const;                            // an array
  std::vector<std::pair<std::string, JsonNode>> members() const;  // an object

  std::string as_string() const;
  bool as_bool() const;
  std::string as_character() const;  // a string of one character
  std::int32_t as_id() const;        // 0 .. kMaxId
  std::int64_t as_count() const;     // 0 .. 2^31 - 1

  bool bool_or(std::string_view key, bool fallback) const;
  // The member `type`, "" if there is none.
  std::string type() const;

  [[noreturn]] void refuse(std::string_view expected) const;  // got what is there
  [[noreturn]] void unsupported(std::string_view what) const;

 private:
  std::string place() const;  // the path with one colon after it

  const nlohmann::json* value_;
  std::string path_;
};

// Ids beyond this are taken for damage: tables are indexed by id.
inline constexpr std::int32_t kMaxId = (1 << 24) - 1;
// Components nested deeper are refused.
inline constexpr int kMaxDepth = 32;

}  // namespace anabatic::io::tokenizer
