// SPDX-License-Identifier: Apache-2.0
#include "spec/attributes.h"

#include <charconv>
#include <cmath>

#include "base/error.h"

namespace anabatic::spec {
namespace {

template <class T>
const T* find(const Attributes& attributes, std::string_view key, const char* kind) {
  const auto found = attributes.find(key);
  if (found == attributes.end()) return nullptr;
  const T* value = std::get_if<T>(&found->second);
  ANABATIC_REQUIRE(value != nullptr, "[attributes] expected {} for '{}', got {}", kind, key,
                   to_string(found->second));
  return value;
}

template <class T>
const T& require(const Attributes& attributes, std::string_view key, const char* kind) {
  const T* value = find<T>(attributes, key, kind);
  ANABATIC_REQUIRE(value != nullptr, "[attributes] expected '{}' ({}), got none", key, kind);
  return *value;
}

std::string quote(const std::string& text) {
  std::string out = "\"";
  for (const char c : text) {
    if (c == '"' || c == '\\') out += '\\';
    out += c;
  }
  return out + '"';
}

std::string print_double(double value) {
  if (std::isnan(value)) return "nan";
  if (std::isinf(value)) return value > 0 ? "inf" : "-inf";
  char buffer[32];
  const auto end = std::to_chars(buffer, buffer + sizeof buffer, value).ptr;
  std::string out(buffer, end);
  if (out.find_first_of(".e") == std::string::npos) out += ".0";
  return out;
}

template <class T>
bool parse_number(std::string_view text, T& value) {
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  return error == std::errc{} && end == text.data() + text.size();
}

std::vector<std::int64_t> parse_list(std::string_view text) {
  std::vector<std::int64_t> list;
  std::string_view rest = text.substr(1, text.size() - 2);
  while (!rest.empty()) {
    const auto comma = rest.find(',');
    std::int64_t value = 0;
    ANABATIC_REQUIRE(parse_number(rest.substr(0, comma), value),
                     "[attributes] expected integers in '{}'", text);
    list.push_back(value);
    ANABATIC_REQUIRE(comma + 1 != rest.size(), "[attributes] expected an integer after ',' in '{}'",
                     text);
    rest = comma == std::string_view::npos ? std::string_view{} : rest.substr(comma + 1);
  }
  return list;
}

std::string unquote(std::string_view text) {
  std::string out;
  for (std::size_t i = 1; i + 1 < text.size(); ++i) {
    if (text[i] == '\\') ++i;
    ANABATIC_REQUIRE(i + 1 < text.size(), "[attributes] unfinished escape in '{}'", text);
    out += text[i];
  }
  return out;
}

}  // namespace

bool get_bool(const Attributes& a, std::string_view key) { return require<bool>(a, key, "a bool"); }
std::int64_t get_int(const Attributes& a, std::string_view key) {
  return require<std::int64_t>(a, key, "an integer");
}
double get_double(const Attributes& a, std::string_view key) {
  return require<double>(a, key, "a number");
}
const std::string& get_string(const Attributes& a, std::string_view key) {
  return require<std::string>(a, key, "a string");
}

bool get_bool_or(const Attributes& a, std::string_view key, bool fallback) {
  const bool* value = find<bool>(a, key, "a bool");
  return value != nullptr ? *value : fallback;
}
std::int64_t get_int_or(const Attributes& a, std::string_view key, std::int64_t fallback) {
  const std::int64_t* value = find<std::int64_t>(a, key, "an integer");
  return value != nullptr ? *value : fallback;
}
double get_double_or(const Attributes& a, std::string_view key, double fallback) {
  const double* value = find<double>(a, key, "a number");
  return value != nullptr ? *value : fallback;
}

std::string to_string(const Attribute& attribute) {
  struct Printer {
    std::string operator()(bool value) const { return value ? "true" : "false"; }
    std::string operator()(std::int64_t value) const { return std::to_string(value); }
    std::string operator()(double value) const { return print_double(value); }
    std::string operator()(const std::string& value) const { return quote(value); }
    std::string operator()(const std::vector<std::int64_t>& list) const {
      std::string out = "[";
      for (std::size_t i = 0; i < list.size(); ++i)
        out += (i > 0 ? "," : "") + std::to_string(list[i]);
      return out + ']';
    }
  };
  return std::visit(Printer{}, attribute);
}

Attribute parse_attribute(std::string_view text) {
  if (text == "true") return true;
  if (text == "false") return false;
  if (text.size() >= 2 && text.front() == '"' && text.back() == '"') return unquote(text);
  if (text.size() >= 2 && text.front() == '[' && text.back() == ']') return parse_list(text);
  std::int64_t integer = 0;
  if (parse_number(text, integer)) return integer;
  // An integer that does not fit must not turn into a number of another kind.
  ANABATIC_REQUIRE(text.find_first_not_of("-0123456789") != std::string_view::npos,
                   "[attributes] expected a 64-bit integer, got '{}'", text);
  double number = 0;
  ANABATIC_REQUIRE(parse_number(text, number), "[attributes] expected a value, got '{}'", text);
  return number;
}

}  // namespace anabatic::spec
