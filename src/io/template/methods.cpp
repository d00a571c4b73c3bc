// SPDX-License-Identifier: Apache-2.0
// Methods of texts, lists and dicts, and the functions that a template may call.
#include <fmt/core.h>

#include <algorithm>
#include <ctime>

#include "io/template/text_functions.h"

namespace anabatic::io::jinja {
namespace {

bool is_left_out(const Value& value) { return !value.is_given() || value.is(Kind::kNone); }

Value list_from(Interpreter& in, const std::vector<Value>& items) { return in.list_of(items); }

// Bytes [begin, end) of a text that the character positions of find() and its kin mean.
struct Window {
  std::size_t begin = 0, end = 0;
  bool is_valid = true;
};
Window window(Interpreter& in, const Value& text, const Value& start, const Value& stop) {
  if (is_left_out(start) && is_left_out(stop)) return {0, text.size};
  const auto length = static_cast<std::int64_t>(in.length(text));
  const auto place = [&](const Value& value, std::int64_t missing) {
    if (is_left_out(value)) return missing;
    const std::int64_t at = in.expect_integer(value, "a position");
    return std::max<std::int64_t>(at < 0 ? at + length : at, 0);
  };
  const std::int64_t from = place(start, 0), to = std::min(place(stop, length), length);
  if (from > to) return {0, 0, false};
  return {byte_of(text.view(), static_cast<std::size_t>(from)),
          byte_of(text.view(), static_cast<std::size_t>(to))};
}

Value affix(Interpreter& in, const Value* a, bool is_prefix) {
  const Window part = window(in, a[0], a[2], a[3]);
  const std::string_view text = a[0].view().substr(part.begin, part.end - part.begin);
  const auto matches = [&](const Value& affix) {
    const std::string_view wanted =
        in.expect_string(affix, "what a text begins or ends with").view();
    return part.is_valid && (is_prefix ? text.starts_with(wanted) : text.ends_with(wanted));
  };
  if (!a[1].is(Kind::kTuple)) return boolean(matches(a[1]));
  return boolean(std::any_of(a[1].items, a[1].items + a[1].size, matches));
}

Value split_text(Interpreter& in, const Value* a, bool from_right) {
  const Value& text = a[0];
  std::int64_t left = is_left_out(a[2]) ? -1 : in.expect_integer(a[2], "maxsplit");
  if (left < 0) left = INT64_MAX;
  in.count_bytes(text.size);
  const std::string_view all = text.view();
  std::vector<Value> parts;
  const auto add = [&](std::size_t begin, std::size_t end) {
    parts.push_back(slice_text(in.arena, text, begin, end));
  };
  if (is_left_out(a[1])) {
    Stripped rest{0, all.size()};
    const auto skip_space = [&] {
      const Stripped part = strip(all.substr(rest.begin, rest.end - rest.begin), std::nullopt,
                                  !from_right, from_right);
      rest = {rest.begin + part.begin, rest.begin + part.end};
    };
    for (skip_space(); rest.begin < rest.end && left-- > 0; skip_space()) {
      std::size_t at = from_right ? rest.end : rest.begin;
      const auto is_space_at = [&](std::size_t byte) {
        return is_space(next_character(all, byte));
      };
      if (from_right) {
        for (std::size_t before = at;
             before > rest.begin && !is_space_at(before = character_before(all, before));)
          at = before;
        add(at, rest.end);
        rest.end = at;
      } else {
        while (at < rest.end && !is_space_at(at)) next_character(all, at);
        add(rest.begin, at);
        rest.begin = at;
      }
    }
    if (rest.begin < rest.end) add(rest.begin, rest.end);
  } else {
    const std::string_view separator = in.expect_string(a[1], "the separator").view();
    if (separator.empty()) fail("empty separator");
    std::size_t begin = 0, end = all.size();
    while (left-- > 0) {
      const std::size_t found =
          from_right ? all.substr(0, end).rfind(separator) : all.find(separator, begin);
      if (found == std::string_view::npos) break;
      from_right ? add(found + separator.size(), end) : add(begin, found);
      from_right ? end = found : begin = found + separator.size();
    }
    add(begin, end);
  }
  if (from_right) std::reverse(parts.begin(), parts.end());
  in.count_steps(parts.size() >> 2);
  return list_from(in, parts);
}

Value title(Interpreter& in, const Value* a, std::size_t) {
  Interpreter::Buffer buffer(in);
  bool follows_cased = false;
  for (std::size_t at = 0; at < a[0].size;) {
    std::string mapped;
    const std::size_t begin = at;
    append_in_case(mapped, a[0].view(), at, follows_cased ? Case::kLower : Case::kTitle);
    follows_cased = has_case(next_character(a[0].view(), at));
    buffer->append(mapped, a[0], begin);
  }
  return buffer.take();
}

// The positional fields of str.format: {} {0} {0!r}, and {name}.
Value format(Interpreter& in, const Value* a, std::size_t count) {
  const auto num_keywords = static_cast<std::size_t>(a[count - 1].integer);
  const Value* const keywords = a + count - 1 - num_keywords;
  const std::string_view all = a[0].view();
  Interpreter::Buffer buffer(in);
  std::size_t next = 0, at = 0;
  bool is_counted = false, is_numbered = false;
  while (at < all.size()) {
    const std::size_t brace = std::min(all.find_first_of("{}", at), all.size());
    buffer->append(a[0], at, brace);
    if (brace == all.size()) break;
    if (brace + 1 < all.size() && all[brace + 1] == all[brace]) {
      buffer->append(a[0], brace, brace + 1);
      at = brace + 2;
      continue;
    }
    const std::size_t end = all.find('}', brace);
    if (all[brace] == '}' || end == std::string_view::npos) fail("a single brace in the format");
    std::string_view field = all.substr(brace + 1, end - brace - 1);
    at = end + 1;
    if (field.find_first_of(":[{.") != std::string_view::npos)
      refuse(fmt::format("the format field '{}'", field));
    const std::size_t mark = std::min(field.find('!'), field.size());
    const std::string_view conversion = field.substr(mark);
    field = field.substr(0, mark);
    if (!conversion.empty() && conversion != "!r" && conversion != "!s")
      refuse(fmt::format("the conversion '{}'", conversion));
    const Value* value = nullptr;
    if (const auto index =
            field.empty() ? static_cast<std::int64_t>(next) : parse_integer(field, 10)) {
      (field.empty() ? is_counted : is_numbered) = true;
      if (is_counted && is_numbered) fail("numbered and unnumbered fields in one format");
      if (field.empty()) ++next;
      if (*index < 0 || *index >= keywords - a - 1)
        fail(fmt::format("the format lacks its argument {}", *index));
      value = a + 1 + *index;
    }
    for (std::size_t i = 0; i < num_keywords && !value; ++i)
      if (keywords[i].items[0].view() == field) value = &keywords[i].items[1];
    if (!value) fail(fmt::format("the format lacks its argument '{}'", field));
    conversion == "!r" ? in.write_repr(*buffer, *value) : in.write(*buffer, *value);
  }
  return buffer.take();
}

Value view_of(Interpreter& in, const Value& dict, std::string_view what) {
  Object* data = in.arena.make<Object>(1);
  data->value = dict;
  data->name = what;
  return object(Kind::kView, data);
}

using In = Interpreter;
using Arguments_ = const Value*;
constexpr Builtin kStringMethods[] = {
    {"capitalize", "self", [](In& in, Arguments_ a, std::size_t) { return capitalized(in, a[0]); }},
    {"count", "self /sub /start? /end?",
     [](In& in, Arguments_ a, std::size_t) {
       const Window part = window(in, a[0], a[2], a[3]);
       const std::string_view text = a[0].view().substr(part.begin, part.end - part.begin);
       const std::string_view wanted = in.expect_string(a[1], "what is counted").view();
       in.count_bytes(a[0].size);
       if (wanted.empty())
         return integer(part.is_valid ? static_cast<std::int64_t>(count_characters(text)) + 1 : 0);
       std::int64_t count = 0;
       for (std::size_t at = 0; (at = text.find(wanted, at)) != std::string_view::npos;
            at += wanted.size())
         ++count;
       return integer(count);
     }},
    {"endswith", "self /suffix /start? /end?",
     [](In& in, Arguments_ a, std::size_t) { return affix(in, a, false); }},
    {"find", "self /sub /start? /end?",
     [](In& in, Arguments_ a, std::size_t) {
       const Window part = window(in, a[0], a[2], a[3]);
       const std::string_view wanted = in.expect_string(a[1], "what is looked for").view();
       in.count_bytes(a[0].size);
       const std::size_t found = a[0].view().substr(0, part.end).find(wanted, part.begin);
       if (!part.is_valid || found == std::string_view::npos) return integer(-1);
       return integer(static_cast<std::int64_t>(count_characters(a[0].view().substr(0, found))));
     }},
    {"format", "self *", format},
    {"join", "self /iterable",
     [](In& in, Arguments_ a, std::size_t) { return joined(in, a[0], in.iterate(a[1]), false); }},
    {"lower", "self",
     [](In& in, Arguments_ a, std::size_t) { return in_case(in, a[0], Case::kLower); }},
    {"lstrip", "self /chars?",
     [](In& in, Arguments_ a, std::size_t) { return stripped(in, a[0], a[1], true, false); }},
    {"replace", "self /old /new /count?",
     [](In& in, Arguments_ a, std::size_t) {
       in.expect_string(a[1], "what is replaced");
       return replaced(in, a[0], a[1], in.expect_string(a[2], "the replacement"), a[3]);
     }},
    {"rsplit", "self sep? maxsplit?",
     [](In& in, Arguments_ a, std::size_t) { return split_text(in, a, true); }},
    {"rstrip", "self /chars?",
     [](In& in, Arguments_ a, std::size_t) { return stripped(in, a[0], a[1], false, true); }},
    {"split", "self sep? maxsplit?",
     [](In& in, Arguments_ a, std::size_t) { return split_text(in, a, false); }},
    {"splitlines", "self keepends?",
     [](In& in, Arguments_ a, std::size_t) {
       return list_from(in, lines_of(in, a[0], in.truth(a[1])));
     }},
    {"startswith", "self /prefix /start? /end?",
     [](In& in, Arguments_ a, std::size_t) { return affix(in, a, true); }},
    {"strip", "self /chars?",
     [](In& in, Arguments_ a, std::size_t) { return stripped(in, a[0], a[1], true, true); }},
    {"title", "self", title},
    {"upper", "self",
     [](In& in, Arguments_ a, std::size_t) { return in_case(in, a[0], Case::kUpper); }},
};

Value index_in(Interpreter& in, const Value* a, std::size_t) {
  const auto items = in.iterate(a[0]);
  const auto size = static_cast<std::int64_t>(items.size());
  const auto place = [&](const Value& value, std::int64_t missing) {
    const std::int64_t at = is_left_out(value) ? missing : in.expect_integer(value, "a position");
    return std::clamp<std::int64_t>(at < 0 ? at + size : at, 0, size);
  };
  for (std::int64_t i = place(a[2], 0), end = place(a[3], size); i < end; ++i)
    if (in.equal(items[static_cast<std::size_t>(i)], a[1])) return integer(i);
  fail("the list has no such element");
}
Value count_in(Interpreter& in, const Value* a, std::size_t) {
  const auto items = in.iterate(a[0]);
  return integer(std::count_if(items.begin(), items.end(),
                               [&](const Value& item) { return in.equal(item, a[1]); }));
}
constexpr Builtin kListMethods[] = {{"count", "self /value", count_in},
                                    {"index", "self /value /start? /stop?", index_in}};

constexpr Builtin kDictMethods[] = {
    {"copy", "self *",
     [](In&, Arguments_, std::size_t) -> Value { refuse("the method 'copy' of dict"); }},
    {"fromkeys", "self *",
     [](In&, Arguments_, std::size_t) -> Value { refuse("the method 'fromkeys' of dict"); }},
    {"get", "self /key /default?",
     [](In& in, Arguments_ a, std::size_t) {
       Value found;
       if (in.find_key(a[0], a[1], found)) return found;
       return a[2].is_given() ? a[2] : none();
     }},
    {"items", "self", [](In& in, Arguments_ a, std::size_t) { return view_of(in, a[0], "items"); }},
    {"keys", "self", [](In& in, Arguments_ a, std::size_t) { return view_of(in, a[0], "keys"); }},
    {"values", "self",
     [](In& in, Arguments_ a, std::size_t) { return view_of(in, a[0], "values"); }},
};

constexpr Builtin kLoopMethods[] = {
    {"cycle", "self *",
     [](In&, Arguments_ a, std::size_t count) {
       if (a[count - 1].integer != 0 || count < 3) fail("cycle() takes items");
       return a[1 + a[0].object->at % (count - 2)];
     }},
    {"changed", "self *",
     [](In& in, Arguments_ a, std::size_t count) {
       const Value now = in.list_of({a + 1, count - 2}, Kind::kTuple);
       Value& last = a[0].object->value;
       const bool has_changed = !last.is_given() || !in.equal(last, now);
       last = now;
       return boolean(has_changed);
     }},
};
constexpr Builtin kCyclerMethods[] = {
    {"next", "self",
     [](In&, Arguments_ a, std::size_t) {
       Object& cycler = *a[0].object;
       const Value now = cycler.items[cycler.at];
       cycler.at = (cycler.at + 1) % cycler.size;
       return now;
     }},
    {"reset", "self",
     [](In&, Arguments_ a, std::size_t) {
       a[0].object->at = 0;
       return none();
     }},
};

// The entries of a mapping, of pairs, or none, and the keywords after it.
std::vector<Entry> entries_of(Interpreter& in, const Value* a, std::size_t count) {
  const auto num_keywords = static_cast<std::size_t>(a[count - 1].integer);
  const std::size_t num_values = count - 1 - num_keywords;
  if (num_values > 1) fail("expected at most one mapping or list of pairs");
  std::vector<Entry> entries;
  if (num_values == 1 && (a[0].is(Kind::kDict))) {
    for_each_entry(in.arena, a[0], [&](const Value& key, const Value& value) {
      entries.push_back({key, value});
      return true;
    });
  } else if (num_values == 1) {
    for (const Value& pair : in.iterate(a[0])) {
      const auto both = in.iterate(pair);
      if (both.size() != 2) fail("expected pairs");
      entries.push_back({both[0], both[1]});
    }
  }
  for (std::size_t i = num_values; i < count - 1; ++i)
    entries.push_back({a[i].items[0], a[i].items[1]});
  return entries;
}

Value make_range(Interpreter& in, const Value* a, std::size_t) {
  Range* range = in.arena.make<Range>(1);
  const std::int64_t first = in.expect_integer(a[0], "a bound of range()");
  const bool has_stop = a[1].is_given();
  *range = {has_stop ? first : 0, has_stop ? in.expect_integer(a[1], "a bound of range()") : first,
            a[2].is_given() ? in.expect_integer(a[2], "the step of range()") : 1};
  if (range->step == 0) fail("the step of range() must not be zero");
  constexpr std::int64_t kFar = std::int64_t{1} << 60, kMost = 100000;
  for (const std::int64_t part : {range->start, range->stop, range->step})
    if (part > kFar || part < -kFar) refuse("a range beyond 2^60");
  if (range->size() > kMost) fail(fmt::format("range too big: more than {} items", kMost));
  Value value;
  value.kind = Kind::kRange;
  value.range = range;
  return value;
}

Value strftime_now(Interpreter& in, const Value* a, std::size_t) {
  const std::string_view wanted = in.expect_string(a[0], "the format of strftime_now()").view();
  std::tm now{};
  if (in.now) {
    now = *in.now;
  } else {
    const std::time_t seconds = std::time(nullptr);
    ::localtime_r(&seconds, &now);
  }
  std::string format;
  for (std::size_t i = 0; i < wanted.size(); ++i) {
    const bool is_field = wanted[i] == '%' && i + 1 < wanted.size();
    const char field = is_field ? wanted[++i] : ' ';
    if (is_field && field == 'f')
      format += "000000";
    else if (is_field && field != 'z' && field != 'Z')
      format.append("%") += field;
    else if (!is_field)
      format += wanted[i];
  }
  std::string result(format.size() * 4 + 256, '\0');
  result.resize(std::strftime(result.data(), result.size(), format.c_str(), &now));
  return in.text(is_valid_utf8(result) ? result : "");
}

Value make_cycler(Interpreter& in, const Value* a, std::size_t count) {
  if (count < 2 || a[count - 1].integer != 0) fail("cycler() takes at least one item");
  Object* data = in.arena.make<Object>(1);
  data->items = in.list_of({a, count - 1}).items;
  data->size = static_cast<std::uint32_t>(count - 1);
  return object(Kind::kCycler, data);
}

constexpr Builtin kFunctions[] = {
    {"cycler", "*", make_cycler},
    {"dict", "*",
     [](In& in, Arguments_ a, std::size_t count) { return in.dict_of(entries_of(in, a, count)); }},
    {"joiner", "sep?",
     [](In& in, Arguments_ a, std::size_t) {
       Object* data = in.arena.make<Object>(1);
       data->value = a[0].is_given() ? a[0] : string(", ");
       return object(Kind::kJoiner, data);
     }},
    {"namespace", "*",
     [](In& in, Arguments_ a, std::size_t count) {
       Object* data = in.arena.make<Object>(1);
       for (const Entry& entry : entries_of(in, a, count))
         in.set_namespace(*data, entry.key, entry.value);
       return object(Kind::kNamespace, data);
     }},
    {"raise_exception", "message",
     [](In& in, Arguments_ a, std::size_t) -> Value { fail(std::string(in.str(a[0]).view())); }},
    {"range", "/start /stop? /step?", make_range},
    {"strftime_now", "format", strftime_now},
    {"lipsum", "*", [](In&, Arguments_, std::size_t) -> Value { refuse("the function 'lipsum'"); }},
};

const Builtin* find_in(std::span<const Builtin> table, std::string_view name) {
  for (const Builtin& builtin : table)
    if (builtin.name == name) return &builtin;
  return nullptr;
}

}  // namespace

const Builtin* find_method(Kind kind, std::string_view name) {
  switch (kind) {
    case Kind::kString:
      return find_in(kStringMethods, name);
    case Kind::kList:
    case Kind::kTuple:
    case Kind::kRange:
      return find_in(kListMethods, name);
    case Kind::kDict:
      return find_in(kDictMethods, name);
    case Kind::kLoop:
      return find_in(kLoopMethods, name);
    case Kind::kCycler:
      return find_in(kCyclerMethods, name);
    default:
      return nullptr;
  }
}

const Builtin* find_function(std::string_view name) { return find_in(kFunctions, name); }

bool is_known_to_jinja2(std::string_view kind, std::string_view name) {
  struct Names {
    std::string_view kind, names;
  };
  static constexpr Names kNames[] = {
      {"filter",
       " attr batch center e escape filesizeformat forceescape format pprint random slice "
       "striptags truncate "
       "urlencode urlize wordcount wordwrap xmlattr "},
      {"test", " callable escaped filter test "},
      {"str",
       " casefold center encode expandtabs format_map index isalnum isalpha isascii isdecimal "
       "isdigit isidentifier "
       "islower isnumeric isprintable isspace istitle isupper ljust maketrans partition "
       "removeprefix removesuffix "
       "rfind rindex rjust rpartition swapcase translate zfill "},
      {"list", " copy "},
  };
  for (const Names& names : kNames)
    if (names.kind == kind && names.names.find(fmt::format(" {} ", name)) != std::string_view::npos)
      return true;
  return false;
}

}  // namespace anabatic::io::jinja
