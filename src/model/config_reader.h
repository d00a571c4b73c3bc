// SPDX-License-Identifier: Apache-2.0
// Reads typed fields of a config.json and collects every problem, so that all are shown at once.
#pragma once
#include <cstdint>
#include <map>
#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <vector>

namespace anabatic::model {

// The largest sizes taken from a file. Far above any model, far below what overflows 64 bits.
struct Limits {
  static constexpr std::int64_t kLayers = 4'096;
  static constexpr std::int64_t kWidth = std::int64_t{1} << 24;  // of hidden and feed-forward
  static constexpr std::int64_t kHeads = std::int64_t{1} << 16;
  static constexpr std::int64_t kExperts = std::int64_t{1} << 16;
  static constexpr std::int64_t kPositions = (std::int64_t{1} << 31) - 1;  // stored as i32
  static constexpr double kParameters = 1e15;
};

struct Range {
  std::int64_t low, high;  // both allowed
};

class ConfigReader {
 public:
  // `where` names the object in messages: "" or "rope_parameters.". The object outlives the reader.
  explicit ConfigReader(const nlohmann::json& object, std::string where = "");

  // Present and not null.
  bool has(const char* key) const;
  bool is_null(const char* key) const;          // present as null
  const nlohmann::json* find(const char* key);  // null when absent or null; marks the key as known

  // The field, or `fallback` when it is absent; a problem when it is null, of another type or out
  // of range.
  std::int64_t integer(const char* key, std::int64_t fallback, Range range);
  double number(const char* key, double fallback, double low, double high);
  bool boolean(const char* key, bool fallback);
  std::string string(const char* key, const std::string& fallback);
  // The same where transformers takes null for "none": empty when null or, without a fallback,
  // absent.
  std::optional<std::int64_t> optional_integer(const char* key,
                                               std::optional<std::int64_t> fallback, Range range);
  std::optional<double> optional_number(const char* key, double low, double high);
  std::vector<std::int64_t> integers(const char* key, Range range);  // an integer, a list, or none
  std::vector<std::string> strings(const char* key);

  void know(std::initializer_list<const char*> keys);
  void invalid(std::string_view key, const std::string& problem);      // "KEY: problem"
  void unsupported(std::string_view key, const std::string& problem);  // changes the maths
  void absorb(const ConfigReader& nested);                             // takes over its problems

  // The one value that an unread field may have in this model. Replaces the neutral values of
  // config_fields.h.
  void expect(const char* key, std::int64_t value);
  std::optional<std::int64_t> expected(std::string_view key) const;

  std::vector<std::string> unknown_keys() const;
  const std::vector<std::string>& invalid_problems() const { return invalid_; }
  const std::vector<std::string>& unsupported_problems() const { return unsupported_; }

 private:
  // Null, after noting a problem, unless the field is there and not null.
  const nlohmann::json* required(const char* key, const char* kind);
  void mistyped(const char* key, const char* kind, const nlohmann::json& value);

  const nlohmann::json& object_;
  std::string where_;
  std::set<std::string, std::less<>> known_;
  std::map<std::string, std::int64_t, std::less<>> expected_;
  std::vector<std::string> invalid_, unsupported_;
};

// A value as text for a message, cut to a readable length.
std::string shown(const nlohmann::json& value);

}  // namespace anabatic::model
