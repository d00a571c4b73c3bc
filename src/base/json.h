// SPDX-License-Identifier: Apache-2.0
// nlohmann's JSON with its class, parser and writer compiled once, because each source that
// instantiates them takes seconds more. Headers that only name the type include
// <nlohmann/json_fwd.hpp>.
#pragma once
#include <functional>
#include <nlohmann/json.hpp>
#include <string>
#include <string_view>

extern template class nlohmann::basic_json<>;
extern template class nlohmann::basic_json<nlohmann::ordered_map>;

namespace anabatic {

using Json = nlohmann::json;
using OrderedJson = nlohmann::ordered_json;

// Throws Json::parse_error, whose text says line, column and what was found, or which number is too
// large. `check` sees every event and may throw.
Json parse_json(std::string_view text, const Json::parser_callback_t& check = nullptr);

// InvalidArgument beginning with `place`, with line and column, unless `text` is a JSON object.
Json parse_json_object(std::string_view text, std::string_view place);

// is_discarded() when `text` is not JSON.
Json try_parse_json(std::string_view text);

// A finite number above 0 that an object has under this key; 0 where it has none.
double positive_number(const Json& object, const char* key);

// Visits the members of an object one after the other, in the order of the text. Only one of them
// is in memory at a time.
struct MemberVisitor {
  std::function<void(std::string name, Json value)> member;
  std::function<void(const std::string& name)>
      double_name;  // appears twice in an object inside a member
};
// False when `text` is a JSON value but no object. Throws Json::parse_error as parse_json does, and
// InvalidArgument for a value nested more than `most_deep`, counting the object itself.
bool visit_members(std::string_view text, int most_deep, const MemberVisitor& visitor);

// Indent below 0: one line. A number that is not finite becomes null. Throws Json::type_error when
// a string is not UTF-8.
std::string dump_json(const Json& value, int indent = -1);
std::string dump_json(const OrderedJson& value, int indent = -1);

// One line for people: bytes that are not UTF-8 become U+FFFD.
std::string show_json(const Json& value);
std::string show_json(const OrderedJson& value);
// At most about 60 bytes of it; only the kind and size of a value that is nested or long.
std::string show_json_briefly(const Json& value);

}  // namespace anabatic
