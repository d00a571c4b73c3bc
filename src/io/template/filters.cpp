// SPDX-License-Identifier: Apache-2.0
// Filters and tests, as jinja2 and transformers define them.
#include <fmt/core.h>

#include <algorithm>
#include <cmath>

#include "io/template/text_functions.h"

namespace anabatic::io::jinja {
namespace {

using In = Interpreter;
using Args = const Value*;

bool is_none(const Value& value) { return !value.is_given() || value.is(Kind::kNone); }

// The value at a path such as "a.b" or "0", or a number.
Value value_at(In& in, Value value, const Value& path) {
  if (is_none(path)) return value;
  if (!path.is_string()) return in.item(value, path);
  std::string_view rest = path.view();
  for (;;) {
    const std::size_t dot = std::min(rest.find('.'), rest.size());
    const std::string_view part = rest.substr(0, dot);
    const bool is_index =
        !part.empty() && part.find_first_not_of("0123456789") == std::string_view::npos;
    value = in.item(value, is_index ? integer(parse_integer(part, 10).value_or(0)) : string(part));
    if (dot == rest.size()) return value;
    rest.remove_prefix(dot + 1);
  }
}
Value without_case(In& in, const Value& value, const Value& case_sensitive) {
  return value.is_string() && !in.truth(case_sensitive) ? in_case(in, value, Case::kLower) : value;
}
Value key_of(In& in, const Value& value, const Value& attribute, const Value& case_sensitive) {
  return without_case(in, value_at(in, value, attribute), case_sensitive);
}

struct Keyed {
  Value key, value;
};
std::vector<Keyed> sorted_by_key(In& in, std::vector<Keyed> items, bool is_reversed = false) {
  in.count_steps(items.size());
  std::stable_sort(items.begin(), items.end(), [&](const Keyed& a, const Keyed& b) {
    return is_reversed ? in.less(b.key, a.key) : in.less(a.key, b.key);
  });
  return items;
}
Value values_of(In& in, const std::vector<Keyed>& items) {
  Value* values = in.arena.make<Value>(items.size());
  for (std::size_t i = 0; i < items.size(); ++i) values[i] = items[i].value;
  return sequence(Kind::kList, values, items.size());
}

Value dictsort(In& in, Args a, std::size_t) {
  const std::string_view by = a[2].is_string() ? a[2].view() : a[2].is_given() ? "" : "key";
  if (by != "key" && by != "value") fail("dictsort sorts by 'key' or 'value'");
  if (!a[0].is(Kind::kDict)) fail(fmt::format("dictsort takes a dict, not '{}'", type_name(a[0])));
  std::vector<Keyed> items;
  for_each_entry(in.arena, a[0], [&](const Value& key, const Value& value) {
    items.push_back({without_case(in, by == "key" ? key : value, a[1]), in.tuple_of(key, value)});
    return true;
  });
  return values_of(in, sorted_by_key(in, std::move(items), in.truth(a[3])));
}

Value sort(In& in, Args a, std::size_t) {
  std::vector<Keyed> items;
  for (const Value& value : in.iterate(a[0])) {
    std::vector<Value> keys;
    std::string_view rest = a[3].is_string() ? a[3].view() : "";
    const bool is_list = rest.find(',') != std::string_view::npos;
    while (is_list) {
      const std::size_t comma = rest.find(',');
      keys.push_back(key_of(in, value, string(rest.substr(0, comma)), a[2]));
      if (comma == std::string_view::npos) break;
      rest.remove_prefix(comma + 1);
    }
    if (!is_list) keys.push_back(key_of(in, value, a[3], a[2]));
    items.push_back({in.list_of(keys), value});
  }
  return values_of(in, sorted_by_key(in, std::move(items), in.truth(a[1])));
}

Value groupby(In& in, Args a, std::size_t) {
  const auto path = [&](const Value& value) {
    const Value found = value_at(in, value, a[1]);
    return found.is(Kind::kUndefined) && !is_none(a[2]) ? a[2] : found;
  };
  std::vector<Keyed> items;
  for (const Value& value : in.iterate(a[0]))
    items.push_back({without_case(in, path(value), a[3]), value});
  items = sorted_by_key(in, std::move(items));
  std::vector<Value> groups;
  for (std::size_t begin = 0, end = 0; begin < items.size(); begin = end) {
    while (end < items.size() && in.equal(items[end].key, items[begin].key)) ++end;
    const std::vector<Keyed> part(items.begin() + static_cast<std::ptrdiff_t>(begin),
                                  items.begin() + static_cast<std::ptrdiff_t>(end));
    Value group =
        in.tuple_of(in.truth(a[3]) ? part[0].key : path(part[0].value), values_of(in, part));
    group.is_group = true;
    groups.push_back(group);
  }
  return in.list_of(groups);
}

Value extreme(In& in, Args a, bool is_max) {
  Value best, best_key;
  for (const Value& value : in.iterate(a[0])) {
    const Value key = key_of(in, value, a[2], a[1]);
    if (best.is_given() && !(is_max ? in.less(best_key, key) : in.less(key, best_key))) continue;
    best = value;
    best_key = key;
  }
  return best.is_given() ? best : undefined("the extreme of an empty sequence");
}

Value unique(In& in, Args a, std::size_t) {
  std::vector<Value> keys, values;
  for (const Value& value : in.iterate(a[0])) {
    const Value key = key_of(in, value, a[2], a[1]);
    if (!in.is_hashable(key)) fail(fmt::format("unhashable type: '{}'", type_name(key)));
    in.count_steps(1 + (keys.size() >> 5));
    if (std::any_of(keys.begin(), keys.end(),
                    [&](const Value& other) { return in.equal(other, key); }))
      continue;
    keys.push_back(key);
    values.push_back(value);
  }
  return in.iterator_over(values);
}

// The arguments of map and its kin: values from `first` on, then keywords as pairs.
struct Rest {
  std::vector<Value> values;
  std::vector<Keyword> keywords;
};
Rest rest_of(Args a, std::size_t first, std::size_t count) {
  Rest rest;
  const std::size_t num_keywords = static_cast<std::size_t>(a[count - 1].integer);
  for (std::size_t i = first; i < count - 1 - num_keywords; ++i) rest.values.push_back(a[i]);
  for (std::size_t i = count - 1 - num_keywords; i < count - 1; ++i)
    rest.keywords.push_back({a[i].items[0].view(), a[i].items[1]});
  return rest;
}
Value apply_named(In& in, std::string_view kind, const Value& input, const Rest& rest) {
  const Value name = in.expect_string(rest.values.at(0), "the name of a filter or test");
  const Builtin* builtin = kind == "filter" ? find_filter(name.view()) : find_test(name.view());
  if (!builtin && is_known_to_jinja2(kind, name.view()))
    refuse(fmt::format("unsupported {} '{}'", kind, name.view()));
  if (!builtin) fail(fmt::format("unknown {} '{}'", kind, name.view()));
  std::vector<Value> values{input};
  values.insert(values.end(), rest.values.begin() + 1, rest.values.end());
  return in.call_builtin(*builtin, {values, rest.keywords}, kind);
}

Value map(In& in, Args a, std::size_t count) {
  if (!in.truth(a[0])) return in.iterator_over({});
  const Rest rest = rest_of(a, 1, count);
  Value attribute, fallback;
  if (rest.values.empty()) {
    for (const Keyword& keyword : rest.keywords) {
      if (keyword.name != "attribute" && keyword.name != "default")
        fail(fmt::format("map does not take '{}'", keyword.name));
      (keyword.name == "default" ? fallback : attribute) = keyword.value;
    }
    if (!attribute.is_given()) fail("map needs a filter or an attribute");
  }
  std::vector<Value> results;
  for (const Value& value : in.iterate(a[0])) {
    in.count_steps(1);
    if (attribute.is_given()) {
      const Value found = value_at(in, value, attribute);
      results.push_back(found.is(Kind::kUndefined) && !is_none(fallback) ? fallback : found);
    } else {
      results.push_back(apply_named(in, "filter", value, rest));
    }
  }
  return in.iterator_over(results);
}

template <bool keeps, bool takes_attribute>
Value select(In& in, Args a, std::size_t count) {
  if (!in.truth(a[0])) return in.iterator_over({});
  const bool has_attribute = count - 1 - static_cast<std::size_t>(a[count - 1].integer) > 1;
  if (takes_attribute && !has_attribute)
    fail("selectattr and rejectattr need the name of an attribute");
  const Rest rest = rest_of(a, takes_attribute ? 2 : 1, count);
  std::vector<Value> kept;
  for (const Value& value : in.iterate(a[0])) {
    in.count_steps(1);
    const Value tested = takes_attribute ? value_at(in, value, a[1]) : value;
    if (in.truth(rest.values.empty() ? tested : apply_named(in, "test", tested, rest)) == keeps)
      kept.push_back(value);
  }
  return in.iterator_over(kept);
}

Value indent(In& in, Args a, std::size_t) {
  const Value text = in.expect_string(a[0], "what indent takes");
  const Value width = a[1].is_given() ? a[1] : integer(4);
  const std::int64_t spaces =
      width.is_string() ? 0 : std::max<std::int64_t>(in.expect_integer(width, "the width"), 0);
  if (spaces > (1 << 20)) fail("an indentation of more than 2^20");
  const Value by =
      width.is_string() ? width : in.text(std::string(static_cast<std::size_t>(spaces), ' '));
  In::Buffer buffer(in);
  if (in.truth(a[2])) buffer->append(by);
  std::vector<Value> lines = lines_of(in, in.binary(Op::kAdd, text, string("\n")), false);
  for (std::size_t i = 0; i < lines.size(); ++i) {
    if (i > 0) buffer->append("\n", nullptr);
    if (i > 0 && (in.truth(a[3]) || lines[i].size > 0)) buffer->append(by);
    buffer->append(lines[i]);
  }
  return buffer.take();
}

Value title_words(In& in, Args a, std::size_t) {
  const Value text = in.str(a[0]);
  In::Buffer buffer(in);
  bool begins = true;
  for (std::size_t at = 0; at < text.size;) {
    const std::size_t begin = at;
    std::string mapped;
    const char32_t character = next_character(text.view(), at);
    const bool is_between = is_space(character) || std::u32string_view(U"-({[<").find(character) !=
                                                       std::u32string_view::npos;
    append_in_case(mapped, text.view(), begin, begins ? Case::kUpper : Case::kLower);
    begins = is_between;
    buffer->append(mapped, text, begin);
  }
  return buffer.take();
}

Value to_int(In& in, Args a, std::size_t) {
  const Value fallback = a[1].is_given() ? a[1] : integer(0);
  const auto truncated = [&](double number) {
    if (std::abs(number) >= 9.2e18) refuse("an integer beyond 2^63");
    return integer(static_cast<std::int64_t>(number));
  };
  if (a[0].is_integral()) return integer(in.expect_integer(a[0], ""));
  if (a[0].is(Kind::kFloat)) {
    if (std::isinf(a[0].number)) fail("cannot convert float infinity to integer");
    return std::isnan(a[0].number) ? fallback : truncated(a[0].number);
  }
  if (a[0].is(Kind::kUndefined)) fail(fmt::format("'{}' is undefined", a[0].view()));
  if (!a[0].is_string()) return fallback;
  const std::int64_t base = a[2].is_given() ? in.expect_integer(a[2], "the base") : 10;
  if (base == 0 || (base >= 2 && base <= 36))
    if (const auto number = parse_integer(a[0].view(), static_cast<int>(base)))
      return integer(*number);
  const auto number = parse_number(a[0].view());
  return number && std::isfinite(*number) ? truncated(*number) : fallback;
}

Value to_float(In&, Args a, std::size_t) {
  if (a[0].is(Kind::kFloat)) return a[0];
  if (a[0].is_integral())
    return real(static_cast<double>(a[0].is(Kind::kBool) ? a[0].boolean : a[0].integer));
  if (a[0].is(Kind::kUndefined)) fail(fmt::format("'{}' is undefined", a[0].view()));
  if (a[0].is_string())
    if (const auto number = parse_number(a[0].view())) return real(*number);
  return a[1].is_given() ? a[1] : real(0);
}

Value round_to(In& in, Args a, std::size_t) {
  const std::string_view method = a[2].is_string() ? a[2].view() : a[2].is_given() ? "" : "common";
  if (method != "common" && method != "ceil" && method != "floor")
    fail("round takes common, ceil or floor");
  if (!a[0].is_number()) fail(fmt::format("type {} cannot be rounded", type_name(a[0])));
  const std::int64_t digits = a[1].is_given() ? in.expect_integer(a[1], "the precision") : 0;
  if (digits > 300 || digits < -300) refuse("a precision of more than 300 digits");
  const bool is_whole = a[0].is_integral();
  const double number = is_whole ? static_cast<double>(in.expect_integer(a[0], "")) : a[0].number;
  const double power = std::pow(10.0, static_cast<double>(digits));
  if (method != "common") {
    const double scaled = number * power;
    if (!std::isfinite(scaled)) fail("cannot convert float infinity or NaN to integer");
    return real((method == "ceil" ? std::ceil(scaled) : std::floor(scaled)) / power);
  }
  if (is_whole) {
    if (digits >= 0) return integer(in.expect_integer(a[0], ""));
    return integer(static_cast<std::int64_t>(std::nearbyint(number * power) / power));
  }
  if (!std::isfinite(number)) return a[0];
  if (digits < 0) return real(std::nearbyint(number * power) / power);
  return real(*parse_number(fmt::format("{:.{}f}", number, digits)));
}

Value length(In& in, Args a, std::size_t) {
  return integer(static_cast<std::int64_t>(in.length(a[0])));
}
Value fallback(In& in, Args a, std::size_t) {
  if (!a[0].is(Kind::kUndefined) && (!in.truth(a[2]) || in.truth(a[0]))) return a[0];
  return a[1].is_given() ? a[1] : string({});
}

constexpr Builtin kFilters[] = {
    {"abs", "value",
     [](In& in, Args a, std::size_t) {
       if (a[0].is(Kind::kFloat)) return real(std::abs(a[0].number));
       if (!a[0].is_integral())
         fail(fmt::format("bad operand type for abs(): '{}'", type_name(a[0])));
       const std::int64_t number = in.expect_integer(a[0], "");
       return number < 0 ? in.binary(Op::kSubtract, integer(0), a[0]) : integer(number);
     }},
    {"capitalize", "s", [](In& in, Args a, std::size_t) { return capitalized(in, in.str(a[0])); }},
    {"count", "value", length},
    {"d", "value default_value? boolean?", fallback},
    {"default", "value default_value? boolean?", fallback},
    {"dictsort", "value case_sensitive? by? reverse?", dictsort},
    {"first", "seq",
     [](In& in, Args a, std::size_t) {
       if (a[0].is(Kind::kIterator)) {
         Object& iterator = *a[0].object;
         return iterator.at < iterator.size ? iterator.items[iterator.at++]
                                            : undefined("the first item of an empty sequence");
       }
       const auto items = in.iterate(a[0]);
       return items.empty() ? undefined("the first item of an empty sequence") : items[0];
     }},
    {"float", "value default?", to_float},
    {"groupby", "value attribute default? case_sensitive?", groupby},
    {"indent", "s width? first? blank?", indent},
    {"int", "value default? base?", to_int},
    {"items", "value",
     [](In& in, Args a, std::size_t) {
       if (a[0].is(Kind::kUndefined)) return in.iterator_over({});
       if (!a[0].is(Kind::kDict)) fail("can only get item pairs from a mapping");
       std::vector<Value> items;
       for_each_entry(in.arena, a[0], [&](const Value& key, const Value& value) {
         items.push_back(in.tuple_of(key, value));
         return true;
       });
       return in.iterator_over(items);
     }},
    {"join", "value d? attribute?",
     [](In& in, Args a, std::size_t) {
       std::vector<Value> items;
       for (const Value& value : in.iterate(a[0])) items.push_back(value_at(in, value, a[2]));
       return joined(in, a[1].is_given() ? in.str(a[1]) : string({}), items, true);
     }},
    {"last", "seq",
     [](In& in, Args a, std::size_t) {
       if (a[0].is(Kind::kIterator)) fail("'generator' object is not reversible");
       const auto items = in.iterate(a[0]);
       return items.empty() ? undefined("the last item of an empty sequence") : items.back();
     }},
    {"length", "value", length},
    {"list", "value", [](In& in, Args a, std::size_t) { return in.list_of(in.iterate(a[0])); }},
    {"lower", "s",
     [](In& in, Args a, std::size_t) { return in_case(in, in.str(a[0]), Case::kLower); }},
    {"map", "value *", map},
    {"max", "value case_sensitive? attribute?",
     [](In& in, Args a, std::size_t) { return extreme(in, a, true); }},
    {"min", "value case_sensitive? attribute?",
     [](In& in, Args a, std::size_t) { return extreme(in, a, false); }},
    {"reject", "value *", select<false, false>},
    {"rejectattr", "value *", select<false, true>},
    {"replace", "s old new count?",
     [](In& in, Args a, std::size_t) {
       return replaced(in, in.str(a[0]), in.str(a[1]), in.str(a[2]), a[3]);
     }},
    {"reverse", "value",
     [](In& in, Args a, std::size_t) {
       if (a[0].is_string()) return in.slice(a[0], none(), none(), integer(-1));
       const auto items = in.iterate(a[0]);
       const std::vector<Value> reversed(items.rbegin(), items.rend());
       return a[0].is(Kind::kIterator) ? in.list_of(reversed) : in.iterator_over(reversed);
     }},
    {"round", "value precision? method?", round_to},
    {"safe", "value",
     [](In& in, Args a, std::size_t) {
       Value text = in.str(a[0]);
       text.is_markup = true;
       return text;
     }},
    {"select", "value *", select<true, false>},
    {"selectattr", "value *", select<true, true>},
    {"sort", "value reverse? case_sensitive? attribute?", sort},
    {"string", "object", [](In& in, Args a, std::size_t) { return in.str(a[0]); }},
    {"sum", "iterable attribute? start?",
     [](In& in, Args a, std::size_t) {
       Value sum = a[2].is_given() ? a[2] : integer(0);
       if (sum.is_string()) fail("sum() cannot sum texts");
       for (const Value& value : in.iterate(a[0]))
         sum = in.binary(Op::kAdd, sum, value_at(in, value, a[1]));
       return sum;
     }},
    {"title", "s", title_words},
    {"tojson", "x ensure_ascii? indent? separators? sort_keys?",
     [](In& in, Args a, std::size_t) {
       In::Buffer buffer(in);
       write_json(in, *buffer, a[0], a[1], a[2], a[3], a[4]);
       return buffer.take();
     }},
    {"trim", "value chars?",
     [](In& in, Args a, std::size_t) { return stripped(in, in.str(a[0]), a[1], true, true); }},
    {"unique", "value case_sensitive? attribute?", unique},
    {"upper", "s",
     [](In& in, Args a, std::size_t) { return in_case(in, in.str(a[0]), Case::kUpper); }},
};

bool is_multiple(In& in, const Value& a, const Value& b, std::int64_t rest) {
  return in.equal(in.binary(Op::kModulo, a, b), integer(rest));
}
template <bool (*test)(In&, Args)>
Value as_boolean(In& in, Args a, std::size_t) {
  return boolean(test(in, a));
}
constexpr auto is_equal = as_boolean<[](In& in, Args a) { return in.equal(a[0], a[1]); }>;
constexpr auto is_unequal = as_boolean<[](In& in, Args a) { return !in.equal(a[0], a[1]); }>;
constexpr auto is_less = as_boolean<[](In& in, Args a) { return in.less(a[0], a[1], "<"); }>;
constexpr auto is_greater = as_boolean<[](In& in, Args a) { return in.less(a[1], a[0], ">"); }>;
constexpr auto is_at_most = as_boolean<[](In& in, Args a) { return in.less(a[0], a[1], "<="); }>;
constexpr auto is_at_least = as_boolean<[](In& in, Args a) { return in.less(a[1], a[0], ">="); }>;
template <Kind kind>
constexpr auto is_kind = as_boolean<[](In&, Args a) { return a[0].is(kind); }>;

constexpr Builtin kTests[] = {
    {"!=", "a b", is_unequal},
    {"<", "a b", is_less},
    {"<=", "a b", is_at_most},
    {"==", "a b", is_equal},
    {">", "a b", is_greater},
    {">=", "a b", is_at_least},
    {"boolean", "value", is_kind<Kind::kBool>},
    {"defined", "value", as_boolean<[](In&, Args a) { return !a[0].is(Kind::kUndefined); }>},
    {"divisibleby", "value num",
     as_boolean<[](In& in, Args a) { return is_multiple(in, a[0], a[1], 0); }>},
    {"eq", "a b", is_equal},
    {"equalto", "a b", is_equal},
    {"even", "value",
     as_boolean<[](In& in, Args a) { return is_multiple(in, a[0], integer(2), 0); }>},
    {"false", "value",
     as_boolean<[](In&, Args a) { return a[0].is(Kind::kBool) && !a[0].boolean; }>},
    {"float", "value", is_kind<Kind::kFloat>},
    {"ge", "a b", is_at_least},
    {"greaterthan", "a b", is_greater},
    {"gt", "a b", is_greater},
    {"in", "value seq", as_boolean<[](In& in, Args a) { return in.contains(a[0], a[1]); }>},
    {"integer", "value", is_kind<Kind::kInt>},
    {"iterable", "value", as_boolean<[](In&, Args a) {
       return (a[0].kind >= Kind::kString && a[0].kind <= Kind::kIterator) ||
              a[0].is(Kind::kUndefined) || a[0].is(Kind::kLoop);
     }>},
    {"le", "a b", is_at_most},
    {"lessthan", "a b", is_less},
    {"lower", "value",
     as_boolean<[](In& in, Args a) { return is_all_in_case(in.str(a[0]).view(), false); }>},
    {"lt", "a b", is_less},
    {"mapping", "value", is_kind<Kind::kDict>},
    {"ne", "a b", is_unequal},
    {"none", "value", is_kind<Kind::kNone>},
    {"number", "value", as_boolean<[](In&, Args a) { return a[0].is_number(); }>},
    {"odd", "value",
     as_boolean<[](In& in, Args a) { return is_multiple(in, a[0], integer(2), 1); }>},
    {"sameas", "value other", as_boolean<[](In& in, Args a) {
       const Kind kind = a[0].kind;
       if (kind == Kind::kNone || kind == Kind::kBool) return a[1].is(kind) && in.equal(a[0], a[1]);
       if (kind != a[1].kind) return false;
       refuse("'sameas' of anything but true, false and none");
     }>},
    {"sequence", "value", as_boolean<[](In&, Args a) {
       const Kind kind = a[0].kind;
       return (kind >= Kind::kString && kind <= Kind::kDict) || kind == Kind::kRange ||
              kind == Kind::kUndefined;
     }>},
    {"string", "value", is_kind<Kind::kString>},
    {"true", "value", as_boolean<[](In&, Args a) { return a[0].is(Kind::kBool) && a[0].boolean; }>},
    {"undefined", "value", is_kind<Kind::kUndefined>},
    {"upper", "value",
     as_boolean<[](In& in, Args a) { return is_all_in_case(in.str(a[0]).view(), true); }>},
};

template <std::size_t size>
const Builtin* find_named(const Builtin (&table)[size], std::string_view name) {
  const auto found = std::lower_bound(
      std::begin(table), std::end(table), name,
      [](const Builtin& builtin, std::string_view wanted) { return builtin.name < wanted; });
  return found != std::end(table) && found->name == name ? found : nullptr;
}

}  // namespace

const Builtin* find_filter(std::string_view name) { return find_named(kFilters, name); }
const Builtin* find_test(std::string_view name) { return find_named(kTests, name); }

}  // namespace anabatic::io::jinja
