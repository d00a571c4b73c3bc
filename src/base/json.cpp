// SPDX-License-Identifier: Apache-2.0
#include "base/json.h"

template class nlohmann::basic_json<>;
template class nlohmann::basic_json<nlohmann::ordered_map>;

namespace anabatic {
namespace {

template <class Value>
std::string dump(const Value& value, int indent, typename Value::error_handler_t on_bad_utf8) {
  return value.dump(indent, ' ', false, on_bad_utf8);
}

}  // namespace

Json parse_json(std::string_view text, const Json::parser_callback_t& check) {
  return Json::parse(text.begin(), text.end(), check);
}

Json try_parse_json(std::string_view text) {
  return Json::parse(text.begin(), text.end(), nullptr, false);
}

std::string dump_json(const Json& value, int indent) {
  return dump(value, indent, Json::error_handler_t::strict);
}
std::string dump_json(const OrderedJson& value, int indent) {
  return dump(value, indent, OrderedJson::error_handler_t::strict);
}

std::string show_json(const Json& value) { return dump(value, -1, Json::error_handler_t::replace); }
std::string show_json(const OrderedJson& value) {
  return dump(value, -1, OrderedJson::error_handler_t::replace);
}

}  // namespace anabatic
