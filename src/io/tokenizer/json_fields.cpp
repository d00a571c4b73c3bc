// SPDX-License-Identifier: Apache-2.0
#include "io/tokenizer/json_fields.h"

#include "io/tokenizer/unicode.h"

namespace anabatic::io::tokenizer {

std::string type_of(const JsonNode& component) {
  const auto node = component.find("type");
  return node ? node->as_string() : "";
}

std::string character_of(const JsonNode& node) {
  std::string text = node.as_string();
  if (!is_one_character(text)) node.refuse("a string of one character");
  return text;
}

std::int32_t id_of(const JsonNode& node) {
  return static_cast<std::int32_t>(node.as_integer(0, kMaxId));
}

std::int64_t count_of(const JsonNode& node) { return node.as_integer(0, INT32_MAX); }

}  // namespace anabatic::io::tokenizer
