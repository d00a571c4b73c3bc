// SPDX-License-Identifier: Apache-2.0
#include "plugin/replacement.h"

#include <yaml-cpp/yaml.h>

#include <map>

#include "base/error.h"

namespace anabatic::plugin {

Replacement parse_replacement(const std::string& text) {
  constexpr const char* kForm = "{segment: mlp, op: swiglu, with: my_swiglu}";
  YAML::Node node;
  try {
    node = YAML::Load(text);
  } catch (const YAML::Exception& error) {
    throw InvalidArgument(fmt::format("expected {}, got '{}': {}", kForm, text, error.what()));
  }
  ANABATIC_REQUIRE(node.IsMap(), "expected {}, got '{}'", kForm, text);
  Replacement replacement;
  const std::map<std::string, std::string*> fields{
      {"segment", &replacement.segment}, {"op", &replacement.op}, {"with", &replacement.with}};
  for (const auto& entry : node) {
    const auto key = entry.first.as<std::string>();
    const auto field = fields.find(key);
    ANABATIC_REQUIRE(field != fields.end(),
                     "expected {}, got the key '{}'; attributes of your op have the defaults of "
                     "its table",
                     kForm, key);
    ANABATIC_REQUIRE(entry.second.IsScalar() && !entry.second.Scalar().empty(),
                     "expected {}, got no word for '{}'", kForm, key);
    ANABATIC_REQUIRE(field->second->empty(), "expected {}, got '{}' twice", kForm, key);
    *field->second = entry.second.Scalar();
  }
  for (const auto& [key, field] : fields)
    ANABATIC_REQUIRE(!field->empty(), "expected {}, got none for '{}'", kForm, key);
  return replacement;
}

std::string to_string(const Replacement& replacement) {
  return fmt::format("{{segment: {}, op: {}, with: {}}}", replacement.segment, replacement.op,
                     replacement.with);
}

}  // namespace anabatic::plugin
