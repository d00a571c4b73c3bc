// SPDX-License-Identifier: Apache-2.0
// Attributes of an op as plain named data, so that printer, parser, equality and hashing need no
// knowledge of ops.
#pragma once
#include <cstdint>
#include <map>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

namespace anabatic::spec {

using Attribute = std::variant<bool, std::int64_t, double, std::string, std::vector<std::int64_t>>;
using Attributes = std::map<std::string, Attribute, std::less<>>;  // sorted: prints byte-stable

// Reads one attribute; InvalidArgument naming the key when it is absent or of another kind.
bool get_bool(const Attributes& attributes, std::string_view key);
std::int64_t get_int(const Attributes& attributes, std::string_view key);
double get_double(const Attributes& attributes, std::string_view key);
const std::string& get_string(const Attributes& attributes, std::string_view key);

// As above, with a value for absent keys.
bool get_bool_or(const Attributes& attributes, std::string_view key, bool fallback);
std::int64_t get_int_or(const Attributes& attributes, std::string_view key, std::int64_t fallback);
double get_double_or(const Attributes& attributes, std::string_view key, double fallback);

// "true", "3", "0.5", "\"text\"", "[1,2]"; doubles print shortest-round-trip and always hold '.',
// 'e', "inf" or "nan".
std::string to_string(const Attribute& attribute);
// The inverse of one attribute's text; InvalidArgument with the text otherwise.
Attribute parse_attribute(std::string_view text);

}  // namespace anabatic::spec
