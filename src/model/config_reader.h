// SPDX-License-Identifier: Apache-2.0
// Reads typed fields of a config.json and collects every problem, so that all are shown at once.
#pragma once
#include <cstdint>
#include <map>
#include <optional>
#include <set>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/json_node.h"

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

// What the files of a family call a field that all families have.
struct FieldName {
  const char* common;
  const char* own;
  bool takes_both = false;  // files may call it by either name
};

class ConfigReader {
 public:
  // Keys of `names` are given by their common name everywhere below, and read and shown as `own`.
  explicit ConfigReader(JsonNode object, std::span<const FieldName> names = {});

  // Present and not null.
  bool has(const char* key) const;
  bool is_null(const char* key) const;  // present as null

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
  // None when absent, null or of another type, which is a problem.
  std::optional<JsonNode> object(const char* key);

  void know(std::initializer_list<const char*> keys);
  void invalid(std::string_view key, const std::string& problem);      // "KEY: problem"
  void unsupported(std::string_view key, const std::string& problem);  // changes the maths
  void absorb(const ConfigReader& nested);                             // takes over its problems

  // The one value that an unread field may have in this model. Replaces the neutral values of
  // config_fields.h.
  void expect(const char* key, std::int64_t value);
  std::optional<std::int64_t> expected(std::string_view key) const;

  std::vector<std::string> unknown_keys() const;
  std::size_t num_absent_keys() const;  // that were asked for or named as known
  const std::vector<std::string>& invalid_problems() const { return invalid_; }
  const std::vector<std::string>& unsupported_problems() const { return unsupported_; }

 private:
  // What `read` makes of a node; none, after noting a problem, where it refuses it.
  template <class Read>
  auto collect(const std::optional<JsonNode>& node, const Read& read)
      -> std::optional<decltype(read(*node))>;
  // Both mark the key as known. `present` gives a null too.
  std::optional<JsonNode> find(const char* key);
  std::optional<JsonNode> present(const char* key);
  std::string_view name_in_file(std::string_view key) const;

  JsonNode object_;
  std::span<const FieldName> names_;
  std::set<std::string, std::less<>> known_;
  std::map<std::string, std::int64_t, std::less<>> expected_;
  std::vector<std::string> invalid_, unsupported_;
};

}  // namespace anabatic::model
