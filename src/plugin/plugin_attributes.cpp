// SPDX-License-Identifier: Apache-2.0
#include "plugin/plugin_attributes.h"

#include <array>
#include <utility>
#include <vector>

#include "base/error.h"
#include "base/json.h"
#include "base/text.h"

namespace anabatic::plugin {
namespace {

constexpr std::array kKinds{"true or false", "an integer", "a number", "a string",
                            "a list of integers"};

const char* kind_of(const spec::Attribute& attribute) { return kKinds[attribute.index()]; }

spec::Attribute to_attribute(const Json& value, std::string_view place, const std::string& key) {
  if (value.is_boolean()) return value.get<bool>();
  if (value.is_number_integer()) return value.get<std::int64_t>();
  if (value.is_number_float()) return value.get<double>();
  if (value.is_string()) return value.get<std::string>();
  const bool is_list =
      value.is_array() && std::all_of(value.begin(), value.end(),
                                      [](const Json& item) { return item.is_number_integer(); });
  ANABATIC_REQUIRE(is_list,
                   "{}: attribute '{}': expected true, false, a number, a string or a list of "
                   "integers, got {}",
                   place, key, show_json_briefly(value));
  return value.get<std::vector<std::int64_t>>();
}

std::string names_of(const spec::Attributes& attributes) {
  std::string names;
  for (const auto& [key, value] : attributes) names += (names.empty() ? "" : ", ") + key;
  return names.empty() ? "none" : names;
}

}  // namespace

spec::Attributes parse_attributes(const char* json, std::string_view place) {
  spec::Attributes attributes;
  if (json == nullptr || *json == 0) return attributes;
  const Json object = parse_json_object(json, fmt::format("{}: attributes", place));
  for (const auto& [key, value] : object.items()) attributes[key] = to_attribute(value, place, key);
  return attributes;
}

std::string to_json(const spec::Attributes& attributes) {
  OrderedJson object = OrderedJson::object();
  for (const auto& [key, value] : attributes)
    std::visit([&, &name = key](const auto& held) { object[name] = held; }, value);
  return dump_json(object);
}

spec::Attributes with_defaults(const spec::Attributes& defaults, const spec::Attributes& given,
                               std::string_view place) {
  spec::Attributes result = defaults;
  for (const auto& [key, value] : given) {
    const auto found = result.find(key);
    if (found == result.end()) {
      std::vector<std::string> names;
      for (const auto& [name, fallback] : defaults) names.push_back(name);
      const auto nearest = nearest_word(key, names);
      throw InvalidArgument(fmt::format("{}: unknown attribute '{}'; {}", place, key,
                                        nearest ? fmt::format("did you mean '{}'?", *nearest)
                                                : "there are: " + names_of(defaults)));
    }
    const bool is_float = std::holds_alternative<double>(found->second);
    if (const auto* integer = std::get_if<std::int64_t>(&value); integer != nullptr && is_float) {
      found->second = static_cast<double>(*integer);
      continue;
    }
    ANABATIC_REQUIRE(value.index() == found->second.index(),
                     "{}: attribute '{}': expected {}, got {}", place, key, kind_of(found->second),
                     spec::to_string(value));
    found->second = value;
  }
  return result;
}

spec::Attribute attribute_of(const spec::Attribute& like, std::string_view text,
                             std::string_view place) {
  if (std::holds_alternative<std::string>(like)) return std::string(text);
  const Json value = try_parse_json(text == "True" ? "true" : text == "False" ? "false" : text);
  ANABATIC_REQUIRE(!value.is_discarded(), "{}: expected {}, got '{}'", place, kind_of(like), text);
  spec::Attribute attribute = to_attribute(value, place, std::string(text));
  const auto* integer = std::get_if<std::int64_t>(&attribute);
  if (integer != nullptr && std::holds_alternative<double>(like))
    return static_cast<double>(*integer);
  ANABATIC_REQUIRE(attribute.index() == like.index(), "{}: expected {}, got '{}'", place,
                   kind_of(like), text);
  return attribute;
}

}  // namespace anabatic::plugin
