// SPDX-License-Identifier: Apache-2.0
#include "base/json.h"

#include <algorithm>
#include <cmath>
#include <utility>
#include <vector>

#include "base/error.h"

template class nlohmann::basic_json<>;
template class nlohmann::basic_json<nlohmann::ordered_map>;

namespace anabatic {
namespace {

template <class Value>
std::string dump(const Value& value, int indent, typename Value::error_handler_t on_bad_utf8) {
  return value.dump(indent, ' ', false, on_bad_utf8);
}

// Builds one member at a time.
class MemberReader final : public Json::json_sax_t {
 public:
  MemberReader(int most_deep, const MemberVisitor& visitor)
      : most_deep_(most_deep), visitor_(visitor) {}

  bool is_object() const { return is_object_; }

  bool null() override { return add(nullptr); }
  bool boolean(bool value) override { return add(value); }
  bool number_integer(number_integer_t value) override { return add(value); }
  bool number_unsigned(number_unsigned_t value) override { return add(value); }
  bool number_float(number_float_t value, const string_t&) override { return add(value); }
  bool string(string_t& value) override { return add(std::move(value)); }
  bool binary(binary_t&) override { return false; }  // not of JSON

  bool start_object(std::size_t) override { return open(Json::object()); }
  bool start_array(std::size_t) override { return open(Json::array()); }
  bool end_object() override { return close(); }
  bool end_array() override { return close(); }

  bool key(string_t& name) override {
    if (depth_ > 1 && open_.back()->contains(name)) visitor_.double_name(name);
    name_ = std::move(name);
    return true;
  }

  bool parse_error(std::size_t, const std::string&, const Json::exception& error) override {
    if (const auto* parse = dynamic_cast<const Json::parse_error*>(&error)) throw *parse;
    throw InvalidArgument(error.what());  // a number out of range
  }

 private:
  bool add(Json value) {
    if (depth_ == 0) return false;
    place(std::move(value));
    if (depth_ == 1) give();
    return true;
  }

  bool open(Json value) {
    ANABATIC_REQUIRE(depth_ < most_deep_, "nested more than {} deep", most_deep_);
    if (depth_++ == 0) return is_object_ = value.is_object();
    open_.push_back(&place(std::move(value)));
    return true;
  }

  bool close() {
    if (--depth_ == 0) return true;
    open_.pop_back();
    if (depth_ == 1) give();
    return true;
  }

  Json& place(Json value) {
    if (open_.empty()) {
      member_name_ = std::move(name_);
      return member_ = std::move(value);
    }
    Json& parent = *open_.back();
    if (parent.is_object()) return parent[name_] = std::move(value);
    parent.push_back(std::move(value));
    return parent.back();
  }

  void give() { visitor_.member(std::exchange(member_name_, {}), std::exchange(member_, {})); }

  int most_deep_, depth_ = 0;
  bool is_object_ = false;
  const MemberVisitor& visitor_;
  std::string name_, member_name_;
  Json member_;
  std::vector<Json*> open_;  // inside member_
};

}  // namespace

bool visit_members(std::string_view text, int most_deep, const MemberVisitor& visitor) {
  MemberReader reader(most_deep, visitor);
  Json::sax_parse(text.begin(), text.end(), &reader);
  return reader.is_object();
}

Json parse_json(std::string_view text, const Json::parser_callback_t& check) {
  try {
    return Json::parse(text.begin(), text.end(), check);
  } catch (const Json::out_of_range& error) {    // a number such as 1e999
    const std::string_view what = error.what();  // [json.exception.out_of_range.406] number ...
    const std::size_t begin = std::min(what.find("] ") + 2, what.size());
    throw Json::parse_error::create(101, std::size_t{0}, std::string(what.substr(begin)), nullptr);
  }
}

Json parse_json_object(std::string_view text, std::string_view place) {
  Json json;
  try {
    json = parse_json(text);
  } catch (const Json::exception& error) {
    std::string_view what = error.what();  // [json.exception.parse_error.101] parse error at ...
    what.remove_prefix(std::min(what.find("] ") + 2, what.size()));
    throw InvalidArgument(fmt::format("{}: expected a JSON object, got: {}", place, what));
  }
  ANABATIC_REQUIRE(json.is_object(), "{}: expected a JSON object, got {}", place,
                   show_json_briefly(json));
  return json;
}

double positive_number(const Json& object, const char* key) {
  if (!object.is_object() || !object.contains(key) || !object[key].is_number()) return 0;
  const double value = object[key].get<double>();
  return std::isfinite(value) && value > 0 ? value : 0;
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

std::string show_json_briefly(const Json& value) {
  constexpr std::size_t kLongest = 60;
  // Nested values could be deep enough to exhaust the stack of a recursive printer.
  const bool is_nested =
      value.is_structured() && std::any_of(value.begin(), value.end(),
                                           [](const Json& item) { return item.is_structured(); });
  if (is_nested || (value.is_structured() && value.size() > kLongest))
    return fmt::format("{} of {} entries", value.is_array() ? "a list" : "an object", value.size());
  const std::string text = show_json(value);
  if (text.size() <= kLongest) return text;
  std::size_t end = kLongest;
  while ((text[end] & 0xC0) == 0x80) --end;  // between two characters
  return text.substr(0, end).append("...");
}

}  // namespace anabatic
