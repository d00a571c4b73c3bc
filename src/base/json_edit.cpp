// SPDX-License-Identifier: Apache-2.0
#include "base/json_edit.h"

#include <algorithm>

#include "base/error.h"
#include "base/json.h"

namespace anabatic {
namespace {

constexpr std::string_view kSpace = " \t\r\n";

std::size_t skip_space(std::string_view text, std::size_t at) {
  return std::min(text.find_first_not_of(kSpace, at), text.size());
}

// The position after the string that begins at `at`.
std::size_t skip_string(std::string_view text, std::size_t at) {
  for (++at; at < text.size() && text[at] != '"'; ++at)
    if (text[at] == '\\') ++at;
  return at + 1;
}

// The position after the value that begins at `at`.
std::size_t skip_value(std::string_view text, std::size_t at) {
  if (text[at] == '"') return skip_string(text, at);
  if (text[at] != '{' && text[at] != '[')
    return std::min(text.find_first_of(",]} \t\r\n", at), text.size());
  std::size_t depth = 0;
  do {
    if (text[at] == '"') {
      at = skip_string(text, at);
      continue;
    }
    if (text[at] == '{' || text[at] == '[') ++depth;
    if (text[at] == '}' || text[at] == ']') --depth;
    ++at;
  } while (depth > 0 && at < text.size());
  return at;
}

}  // namespace

std::string with_member(std::string_view object, std::string_view key, std::string_view value) {
  ANABATIC_CHECK(try_parse_json(object).is_object(), "[json] expected an object to set {} in", key);
  const std::size_t open = object.find('{');
  std::string result(object.substr(0, open + 1));
  std::size_t at = skip_space(object, open + 1);
  const std::string_view space = object.substr(open + 1, at - open - 1);  // before the first key
  const bool is_empty = object[at] == '}';
  bool is_set = false;
  std::size_t copied = open + 1, end_of_last = open + 1;
  while (object[at] != '}') {
    const std::size_t key_end = skip_string(object, at);
    const bool is_key = parse_json(object.substr(at, key_end - at)).get<std::string>() == key;
    const std::size_t begin = skip_space(object, object.find(':', key_end) + 1);
    end_of_last = skip_value(object, begin);
    if (is_key) {
      result += object.substr(copied, begin - copied);
      result += value;
      copied = end_of_last;
      is_set = true;
    }
    at = skip_space(object, end_of_last);
    if (object[at] == ',') at = skip_space(object, at + 1);
  }
  if (!is_set) {
    result += object.substr(copied, end_of_last - copied);
    copied = end_of_last;
    if (!is_empty) result += fmt::format(",{}", space);
    result += fmt::format("{}: {}", dump_json(Json(std::string(key))), value);
  }
  return result += object.substr(copied);
}

std::string without_member(std::string_view object, std::string_view key) {
  ANABATIC_CHECK(try_parse_json(object).is_object(), "[json] expected an object to remove {} from",
                 key);
  const std::size_t open = object.find('{');
  std::string result(object.substr(0, open + 1));
  std::size_t copied = open + 1, end_of_kept = open + 1, at = skip_space(object, open + 1);
  bool has_kept = false, removes_last = false;
  while (object[at] != '}') {
    const std::size_t key_end = skip_string(object, at);
    const bool is_key = parse_json(object.substr(at, key_end - at)).get<std::string>() == key;
    const std::size_t end = skip_value(object, skip_space(object, object.find(':', key_end) + 1));
    const std::size_t comma = skip_space(object, end);
    const bool is_last = object[comma] == '}';
    const std::size_t next = is_last ? comma : skip_space(object, comma + 1);
    if (is_key) {
      result += object.substr(copied, at - copied);
      copied = is_last ? end : next;
    } else {
      has_kept = true;
    }
    removes_last = is_key && is_last;
    if (!is_key) end_of_kept = result.size() + end - copied;
    at = next;
  }
  // The comma and spaces between the last member that is kept and the one that went.
  if (removes_last) result.resize(has_kept ? end_of_kept : open + 1);
  return result += object.substr(copied);
}

}  // namespace anabatic
