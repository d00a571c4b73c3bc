// SPDX-License-Identifier: Apache-2.0
// Python's operators, containers and text of values.
#include <fmt/core.h>
#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "io/template/interpreter.h"
#include "io/template/python_text.h"

namespace anabatic::io::jinja {
namespace {

double number_of(const Value& value) {
  return value.is(Kind::kFloat)  ? value.number
         : value.is(Kind::kBool) ? value.boolean
                                 : static_cast<double>(value.integer);
}
std::int64_t integer_of(const Value& value) {
  return value.is(Kind::kBool) ? value.boolean : value.integer;
}

std::int64_t floor_divide(std::int64_t a, std::int64_t b) {
  return a / b - ((a % b != 0) && ((a < 0) != (b < 0)));
}

Value integer_arithmetic(Op op, std::int64_t a, std::int64_t b) {
  std::int64_t result = 0;
  bool overflows = false;
  switch (op) {
    case Op::kAdd:
      overflows = __builtin_add_overflow(a, b, &result);
      break;
    case Op::kSubtract:
      overflows = __builtin_sub_overflow(a, b, &result);
      break;
    case Op::kMultiply:
      overflows = __builtin_mul_overflow(a, b, &result);
      break;
    case Op::kPower: {
      if (b < 0) {
        if (a == 0) fail("0 cannot be raised to a negative power");
        return real(std::pow(static_cast<double>(a), static_cast<double>(b)));
      }
      if (a == 1 || a == 0 || a == -1) return integer(b == 0 ? 1 : a == -1 && b % 2 == 0 ? 1 : a);
      result = 1;
      for (std::int64_t i = 0; i < b && !overflows; ++i)
        overflows = __builtin_mul_overflow(result, a, &result);
      break;
    }
    default: {
      if (b == 0) fail("division by zero");
      if (op == Op::kDivide) return real(static_cast<double>(a) / static_cast<double>(b));
      overflows = a == INT64_MIN && b == -1;
      if (overflows) break;
      const std::int64_t quotient = floor_divide(a, b);
      result = op == Op::kFloorDivide ? quotient : a - quotient * b;
    }
  }
  if (overflows) refuse("an integer beyond 2^63");
  return integer(result);
}

Value real_arithmetic(Op op, double a, double b) {
  switch (op) {
    case Op::kAdd:
      return real(a + b);
    case Op::kSubtract:
      return real(a - b);
    case Op::kMultiply:
      return real(a * b);
    case Op::kPower: {
      if (a == 0 && b < 0) fail("0.0 cannot be raised to a negative power");
      if (a < 0 && std::isfinite(b) && b != std::floor(b)) refuse("a complex number");
      const double power = std::pow(a, b);
      if (std::isinf(power) && std::isfinite(a) && std::isfinite(b))
        fail("numerical result out of range");
      return real(power);
    }
    default:
      break;
  }
  if (b == 0) fail("float division by zero");
  if (op == Op::kDivide) return real(a / b);
  double rest = std::fmod(a, b);
  if (rest != 0 && (rest < 0) != (b < 0)) rest += b;
  if (rest == 0) rest = std::copysign(0.0, b);
  if (op == Op::kModulo) return real(rest);
  const double quotient = (a - rest) / b;
  const double whole = std::floor(quotient);
  return real(quotient - whole > 0.5 ? whole + 1 : whole == 0 ? std::copysign(0.0, a / b) : whole);
}

void append_escaped(TextBuilder& builder, const Value& string) {
  for (std::size_t at = 0; at < string.size;) {
    const std::size_t end =
        std::min<std::size_t>(string.view().find_first_of("&<>'\"", at), string.size);
    builder.append(string, at, end);
    if (end == string.size) return;
    const char c = string.view()[end];
    builder.append(c == '&'   ? "&amp;"
                   : c == '<' ? "&lt;"
                   : c == '>' ? "&gt;"
                   : c == '"' ? "&#34;"
                              : "&#39;",
                   string, end);
    at = end + 1;
  }
}

// Where Python's slice begins, and how many elements it has.
struct SliceRange {
  std::int64_t start = 0, stop = 0, step = 1;
  std::size_t count = 0;
};

SliceRange slice_range(Interpreter& in, const Value& start, const Value& stop, const Value& step,
                       std::size_t size) {
  const auto length = static_cast<std::int64_t>(size);
  SliceRange range;
  const auto given = [](const Value& value) { return !value.is(Kind::kNone); };
  if (given(step)) range.step = in.expect_integer(step, "a slice step");
  if (range.step == 0) fail("slice step cannot be zero");
  const std::int64_t low = range.step < 0 ? -1 : 0, high = range.step < 0 ? length - 1 : length;
  const auto clamp = [&](const Value& value, std::int64_t missing) {
    if (!given(value)) return missing;
    std::int64_t at = in.expect_integer(value, "a slice index");
    if (at < 0) at = at < -length ? low : at + length;
    return std::clamp(at, low, high);
  };
  range.start = clamp(start, range.step < 0 ? high : low);
  range.stop = clamp(stop, range.step < 0 ? low : high);
  range.count = static_cast<std::size_t>(Range{range.start, range.stop, range.step}.size());
  return range;
}

}  // namespace

bool Interpreter::truth(const Value& value) const {
  switch (value.kind) {
    case Kind::kMissing:
    case Kind::kUndefined:
    case Kind::kNone:
      return false;
    case Kind::kBool:
      return value.boolean;
    case Kind::kInt:
      return value.integer != 0;
    case Kind::kFloat:
      return value.number != 0;
    case Kind::kString:
    case Kind::kList:
    case Kind::kTuple:
    case Kind::kDict:
      return value.size != 0;
    case Kind::kView:
      return value.object->value.size != 0;
    case Kind::kRange:
      return value.range->size() != 0;
    case Kind::kLoop:
      return value.object->size != 0;
    default:
      return true;
  }
}

bool Interpreter::equal(const Value& a, const Value& b) {
  if (a.is_number() && b.is_number()) {
    if (a.is_integral() && b.is_integral()) return integer_of(a) == integer_of(b);
    return number_of(a) == number_of(b);
  }
  if (a.kind != b.kind) return false;
  switch (a.kind) {
    case Kind::kMissing:
    case Kind::kUndefined:
    case Kind::kNone:
      return true;
    case Kind::kString:
      return a.size == b.size && (a.text == b.text || std::memcmp(a.text, b.text, a.size) == 0);
    case Kind::kList:
    case Kind::kTuple: {
      if (a.size != b.size) return false;
      const Level level(*this);
      count_steps(a.size >> 4);
      for (std::size_t i = 0; i < a.size; ++i)
        if (!equal(element(a, i), element(b, i))) return false;
      return true;
    }
    case Kind::kDict: {
      if (a.size != b.size) return false;
      const Level level(*this);
      bool is_equal = true;
      for_each_entry(arena, a, [&](const Value& key, const Value& value) {
        Value other;
        return is_equal = find_key(b, key, other) && equal(value, other);
      });
      return is_equal;
    }
    case Kind::kRange: {
      const Range &x = *a.range, &y = *b.range;
      const std::int64_t size = x.size();
      return size == y.size() &&
             (size == 0 || (x.start == y.start && (size == 1 || x.step == y.step)));
    }
    default:
      return a.object == b.object;
  }
}

bool Interpreter::less(const Value& a, const Value& b, std::string_view sign) {
  const bool or_equal = sign.size() == 2;
  if (a.is_number() && b.is_number()) {
    if (a.is_integral() && b.is_integral())
      return or_equal ? integer_of(a) <= integer_of(b) : integer_of(a) < integer_of(b);
    return or_equal ? number_of(a) <= number_of(b) : number_of(a) < number_of(b);
  }
  if (a.is_string() && b.is_string()) return or_equal ? a.view() <= b.view() : a.view() < b.view();
  if (a.kind == b.kind && (a.is(Kind::kList) || a.is(Kind::kTuple))) {
    const Level level(*this);
    for (std::size_t i = 0; i < std::min(a.size, b.size); ++i) {
      const Value x = element(a, i), y = element(b, i);
      if (!equal(x, y)) return less(x, y, sign);
    }
    return or_equal ? a.size <= b.size : a.size < b.size;
  }
  if (a.is(Kind::kUndefined) || b.is(Kind::kUndefined))
    fail(fmt::format("'{}' is undefined", (a.is(Kind::kUndefined) ? a : b).view()));
  fail(
      fmt::format("'{}' is not supported between '{}' and '{}'", sign, type_name(a), type_name(b)));
}

bool Interpreter::is_hashable(const Value& key) const {
  if (key.is(Kind::kTuple))
    return std::all_of(key.items, key.items + key.size,
                       [&](const Value& part) { return is_hashable(part); });
  return !key.is(Kind::kList) && !key.is(Kind::kDict);
}

bool Interpreter::find_key(const Value& dict, const Value& key, Value& found) {
  if (!is_hashable(key)) fail(fmt::format("unhashable type: '{}'", type_name(key)));
  count_steps(dict.size >> 5);
  if (dict.is_json) {
    if (!key.is_string()) return false;
    for (const auto& [name, value] : dict.json->get_ref<const OrderedJson::object_t&>()) {
      if (name != key.view()) continue;
      found = from_json(value, member_origin(arena, dict.origin, name));
      return true;
    }
    return false;
  }
  for (std::uint32_t i = 0; i < dict.size; ++i) {
    if (!equal(dict.entries[i].key, key)) continue;
    found = dict.entries[i].value;
    return true;
  }
  return false;
}

bool Interpreter::contains(const Value& needle, const Value& haystack) {
  Value ignored;
  switch (haystack.kind) {
    case Kind::kString:
      count_bytes(haystack.size);
      return haystack.view().find(expect_string(needle, "the left of 'in <string>'").view()) !=
             std::string_view::npos;
    case Kind::kDict:
      return find_key(haystack, needle, ignored);
    case Kind::kView:
      if (haystack.object->name == "keys") return find_key(haystack.object->value, needle, ignored);
      [[fallthrough]];
    case Kind::kList:
    case Kind::kTuple:
    case Kind::kRange:
    case Kind::kIterator:
    case Kind::kUndefined: {
      const auto items = iterate(haystack);
      return std::any_of(items.begin(), items.end(),
                         [&](const Value& item) { return equal(item, needle); });
    }
    default:
      fail(fmt::format("argument of type '{}' is not iterable", type_name(haystack)));
  }
}

Value Interpreter::binary(Op op, const Value& a, const Value& b) {
  if (a.is_number() && b.is_number()) {
    if (a.is_integral() && b.is_integral())
      return integer_arithmetic(op, integer_of(a), integer_of(b));
    return real_arithmetic(op, number_of(a), number_of(b));
  }
  if (op == Op::kAdd && a.is_string() && b.is_string()) {
    Buffer buffer(*this);
    const bool is_markup = a.is_markup || b.is_markup;
    for (const Value* part : {&a, &b})
      is_markup && !part->is_markup ? append_escaped(*buffer, *part) : buffer->append(*part);
    Value sum = buffer.take();
    sum.is_markup = is_markup;
    return sum;
  }
  if (op == Op::kAdd && a.kind == b.kind && (a.is(Kind::kList) || a.is(Kind::kTuple))) {
    Value* items = arena.make<Value>(a.size + b.size);
    for (std::size_t i = 0; i < a.size + b.size; ++i)
      items[i] = i < a.size ? element(a, i) : element(b, i - a.size);
    return sequence(a.kind, items, a.size + b.size);
  }
  if (op == Op::kMultiply && (a.is_integral() || b.is_integral())) {
    const Value& what = a.is_integral() ? b : a;
    const std::int64_t wanted = integer_of(a.is_integral() ? a : b);
    const auto times = static_cast<std::size_t>(std::max<std::int64_t>(wanted, 0));
    if (what.is_string() || what.is(Kind::kList) || what.is(Kind::kTuple)) {
      if (what.size > 0 && times > TextBuilder::kLargest_bytes / what.size)
        fail("a product of more than 10 MiB");
      if (!what.is_string()) {
        Value* items = arena.make<Value>(what.size * times);
        for (std::size_t i = 0; i < what.size * times; ++i) items[i] = element(what, i % what.size);
        return sequence(what.kind, items, what.size * times);
      }
      Buffer buffer(*this);
      for (std::size_t i = 0; i < times && what.size > 0; ++i) buffer->append(what);
      Value product = buffer.take();
      product.is_markup = what.is_markup;
      return product;
    }
  }
  if (a.is(Kind::kUndefined) || b.is(Kind::kUndefined))
    fail(fmt::format("'{}' is undefined", (a.is(Kind::kUndefined) ? a : b).view()));
  if (op == Op::kModulo && a.is_string()) refuse("the operator % on a text");
  constexpr const char* kSigns[] = {"+", "-", "*", "/", "//", "%", "**"};
  fail(fmt::format("unsupported operand types for {}: '{}' and '{}'",
                   kSigns[static_cast<int>(op) - static_cast<int>(Op::kAdd)], type_name(a),
                   type_name(b)));
}

std::size_t Interpreter::length(const Value& value) {
  switch (value.kind) {
    case Kind::kString:
      count_bytes(value.size);
      return count_characters(value.view());
    case Kind::kList:
    case Kind::kTuple:
    case Kind::kDict:
      return value.size;
    case Kind::kView:
      return value.object->value.size;
    case Kind::kRange:
      return static_cast<std::size_t>(value.range->size());
    case Kind::kLoop:
      return value.object->size;
    case Kind::kUndefined:
      return 0;
    default:
      fail(fmt::format("object of type '{}' has no len()", type_name(value)));
  }
}

Value Interpreter::list_of(std::span<const Value> items, Kind kind) {
  Value* copy = arena.make<Value>(items.size());
  std::copy(items.begin(), items.end(), copy);
  return sequence(kind, copy, items.size());
}
Value Interpreter::iterator_over(std::span<const Value> items) {
  Object* data = arena.make<Object>(1);
  data->items = list_of(items).items;
  data->size = static_cast<std::uint32_t>(items.size());
  return object(Kind::kIterator, data);
}
Value Interpreter::tuple_of(const Value& first, const Value& second) {
  const Value both[] = {first, second};
  return list_of(both, Kind::kTuple);
}
Value Interpreter::text(std::string_view text, const Origin* origin) {
  char* copy = arena.bytes(text.size());
  std::copy(text.begin(), text.end(), copy);
  return string({copy, text.size()}, origin);
}
Value Interpreter::dict_of(std::span<const Entry> entries) {
  Entry* copy = arena.make<Entry>(entries.size());
  Value dict;
  dict.kind = Kind::kDict;
  dict.entries = copy;
  for (const Entry& entry : entries) {
    if (!is_hashable(entry.key)) fail(fmt::format("unhashable type: '{}'", type_name(entry.key)));
    count_steps(dict.size >> 5);
    Entry* const known = std::find_if(
        copy, copy + dict.size, [&](const Entry& other) { return equal(other.key, entry.key); });
    if (known == copy + dict.size) {
      *known = entry;
      ++dict.size;
    } else {
      known->value = entry.value;
    }
  }
  return dict;
}

Value Interpreter::element(const Value& sequence, std::size_t i) {
  return sequence.is_json ? json_element(arena, sequence, i) : sequence.items[i];
}

std::span<const Value> Interpreter::view_items(const Value& view) {
  const Value& dict = view.object->value;
  const std::string_view what = view.object->name;
  Value* items = arena.make<Value>(dict.size);
  std::size_t count = 0;
  for_each_entry(arena, dict, [&](const Value& key, const Value& value) {
    items[count++] = what == "keys" ? key : what == "values" ? value : tuple_of(key, value);
    return true;
  });
  return {items, count};
}

std::span<const Value> Interpreter::iterate(const Value& value) {
  Value* items = nullptr;
  std::size_t count = 0;
  switch (value.kind) {
    case Kind::kList:
    case Kind::kTuple:
      if (!value.is_json) return {value.items, value.size};
      items = arena.make<Value>(value.size);
      for (; count < value.size; ++count) items[count] = json_element(arena, value, count);
      break;
    case Kind::kString:
      items = arena.make<Value>(value.size);
      for (std::size_t at = 0; at < value.size;) {
        const std::size_t begin = at;
        next_character(value.view(), at);
        items[count] = slice_text(arena, value, begin, at);
        items[count++].is_markup = false;
      }
      break;
    case Kind::kDict: {
      items = arena.make<Value>(value.size);
      for_each_entry(arena, value, [&](const Value& key, const Value&) {
        items[count++] = key;
        return true;
      });
      break;
    }
    case Kind::kView:
      return view_items(value);
    case Kind::kRange:
      items = arena.make<Value>(static_cast<std::size_t>(value.range->size()));
      for (; count < static_cast<std::size_t>(value.range->size()); ++count)
        items[count] =
            integer(value.range->start + static_cast<std::int64_t>(count) * value.range->step);
      break;
    case Kind::kIterator: {
      Object& iterator = *value.object;
      const std::uint32_t begin = std::exchange(iterator.at, iterator.size);
      return {iterator.items + begin, iterator.size - begin};
    }
    case Kind::kUndefined:
      return {};
    default:
      fail(fmt::format("'{}' object is not iterable", type_name(value)));
  }
  count_steps(count >> 4);
  return {items, count};
}

Value Interpreter::item(const Value& of, const Value& key) {
  if (of.is(Kind::kUndefined)) fail(fmt::format("'{}' is undefined", of.view()));
  Value found;
  if (of.is(Kind::kDict)) {
    if (is_hashable(key) && find_key(of, key, found)) return found;
  } else if (key.is_integral() &&
             (of.is_string() || of.is(Kind::kList) || of.is(Kind::kTuple) || of.is(Kind::kRange))) {
    const auto size = static_cast<std::int64_t>(length(of));
    const std::int64_t at = integer_of(key) + (integer_of(key) < 0 ? size : 0);
    if (at >= 0 && at < size) {
      if (of.is(Kind::kRange)) return integer(of.range->start + at * of.range->step);
      if (!of.is_string()) return element(of, static_cast<std::size_t>(at));
      const std::size_t begin = byte_of(of.view(), static_cast<std::size_t>(at));
      std::size_t end = begin;
      next_character(of.view(), end);
      return slice_text(arena, of, begin, end);
    }
  }
  if (key.is_string() && !of.is(Kind::kDict)) return attribute(of, key.view());
  if (key.is_string() && find_method(Kind::kDict, key.view())) return attribute(of, key.view());
  return undefined(key.is_string() ? key.view() : "an element that is not there");
}

Value Interpreter::slice(const Value& of, const Value& start, const Value& stop,
                         const Value& step) {
  if (of.is(Kind::kUndefined)) fail(fmt::format("'{}' is undefined", of.view()));
  if (!of.is_string() && !of.is(Kind::kList) && !of.is(Kind::kTuple) && !of.is(Kind::kRange))
    return undefined("a slice");
  for (const Value* part : {&start, &stop, &step})
    if (!part->is(Kind::kNone) && !part->is_integral()) return undefined("a slice");
  const SliceRange range = slice_range(*this, start, stop, step, length(of));
  const auto at = [&](std::size_t i) {
    return range.start + static_cast<std::int64_t>(i) * range.step;
  };
  count_steps(range.count >> 4);
  if (of.is(Kind::kRange)) {
    Range* part = arena.make<Range>(1);
    const Range& whole = *of.range;
    *part = {whole.start + range.start * whole.step, whole.start + range.stop * whole.step,
             whole.step * range.step};
    Value value;
    value.kind = Kind::kRange;
    value.range = part;
    return value;
  }
  if (!of.is_string()) {
    Value* items = arena.make<Value>(range.count);
    for (std::size_t i = 0; i < range.count; ++i)
      items[i] = element(of, static_cast<std::size_t>(at(i)));
    return sequence(of.kind, items, range.count);
  }
  if (range.count == 0) return string({});
  if (range.step == 1) {
    const std::size_t begin = byte_of(of.view(), static_cast<std::size_t>(range.start));
    return slice_text(arena, of, begin, begin + byte_of(of.view().substr(begin), range.count));
  }
  std::vector<std::size_t> begins;
  for (std::size_t byte = 0; byte < of.size; next_character(of.view(), byte))
    begins.push_back(byte);
  begins.push_back(of.size);
  Buffer buffer(*this);
  for (std::size_t i = 0; i < range.count; ++i)
    buffer->append(of, begins[static_cast<std::size_t>(at(i))],
                   begins[static_cast<std::size_t>(at(i)) + 1]);
  return buffer.take();
}

Value Interpreter::attribute(const Value& of, std::string_view name) {
  const Builtin* method = find_method(of.kind, name);
  const bool may_lack = of.is_string() || of.is(Kind::kList);
  if (method || (may_lack && is_known_to_jinja2(type_name(of), name))) {
    Object* data = arena.make<Object>(1);
    data->value = of;
    data->method = method;
    data->name = method ? method->name : name;
    return object(Kind::kMethod, data);
  }
  Value found;
  switch (of.kind) {
    case Kind::kUndefined:
      fail(fmt::format("'{}' is undefined", of.view()));
    case Kind::kDict:
      if (find_key(of, string(name), found)) return found;
      break;
    case Kind::kNamespace:
      for (std::uint32_t i = 0; i < of.object->size; ++i)
        if (of.object->entries[i].key.view() == name) return of.object->entries[i].value;
      break;
    case Kind::kTuple:
      if (of.is_group && name == "grouper") return of.items[0];
      if (of.is_group && name == "list") return of.items[1];
      break;
    case Kind::kMacro:
      if (name == "name") return of.object->name.empty() ? none() : string(of.object->name);
      break;
    case Kind::kCycler:
      if (name == "current") return of.object->items[of.object->at];
      break;
    case Kind::kLoop: {
      const Object& loop = *of.object;
      const std::int64_t at = loop.at, size = loop.size;
      if (name == "index") return integer(at + 1);
      if (name == "index0") return integer(at);
      if (name == "revindex") return integer(size - at);
      if (name == "revindex0") return integer(size - at - 1);
      if (name == "first") return boolean(at == 0);
      if (name == "last") return boolean(at == size - 1);
      if (name == "length") return integer(size);
      if (name == "depth") return integer(1);
      if (name == "depth0") return integer(0);
      if (name == "previtem")
        return at > 0 ? loop.items[at - 1] : undefined("there is no previous item");
      if (name == "nextitem")
        return at + 1 < size ? loop.items[at + 1] : undefined("there is no next item");
      break;
    }
    default:
      break;
  }
  return undefined(name);
}

void Interpreter::set_namespace(Object& space, const Value& key, const Value& value) {
  const Value name = expect_string(key, "a name of a namespace");
  if (name.view().starts_with('_'))
    fail(fmt::format("a namespace cannot store '{}', which begins with '_'", name.view()));
  for (std::uint32_t i = 0; i < space.size; ++i) {
    if (space.entries[i].key.view() != name.view()) continue;
    space.entries[i].value = value;
    return;
  }
  if (space.size == space.capacity) {
    Entry* larger = arena.make<Entry>(2 * space.capacity + 4);
    std::copy_n(space.entries, space.size, larger);
    space.entries = larger;
    space.capacity = 2 * space.capacity + 4;
  }
  space.entries[space.size++] = {name, value};
}

const Value& Interpreter::expect_string(const Value& value, std::string_view what) {
  if (!value.is_string()) fail(fmt::format("{} must be a text, not '{}'", what, type_name(value)));
  return value;
}
std::int64_t Interpreter::expect_integer(const Value& value, std::string_view what) {
  if (!value.is_integral())
    fail(fmt::format("{} must be an integer, not '{}'", what, type_name(value)));
  return integer_of(value);
}

Value Interpreter::str(const Value& value) {
  if (value.is_string()) return value;
  Buffer buffer(*this);
  write(*buffer, value);
  return buffer.take();
}

void Interpreter::write(TextBuilder& builder, const Value& value) {
  if (value.is_string())
    builder.append(value);
  else if (!value.is(Kind::kUndefined))
    write_repr(builder, value);
}

void Interpreter::write_repr(TextBuilder& builder, const Value& value) {
  // What a container of a message adds is the field's, as in JSON.
  const bool is_container = value.is(Kind::kList) || value.is(Kind::kDict);
  const Origin* const own =
      is_container && value.origin && value.origin->field ? value.origin : nullptr;
  const auto put = [&](std::string_view text) { builder.append(text, own); };
  const auto all = [&](std::span<const Value> items) {
    const Level level(*this);
    count_steps(items.size());
    for (std::size_t i = 0; i < items.size(); ++i) {
      if (i > 0) put(", ");
      write_repr(builder, items[i]);
    }
  };
  switch (value.kind) {
    case Kind::kString:
      return builder.append(value.is_markup ? "Markup(" + repr_of_string(value.view()) + ")"
                                            : repr_of_string(value.view()),
                            value, 0);
    case Kind::kNone:
      return put("None");
    case Kind::kUndefined:
      return put("Undefined");
    case Kind::kBool:
      return builder.append(value.boolean ? "True" : "False", value.origin);
    case Kind::kInt:
      return builder.append(fmt::format_int(value.integer).c_str(), value.origin);
    case Kind::kFloat:
      return builder.append(repr_of_number(value.number), value.origin);
    case Kind::kList:
      put("[");
      all(iterate(value));
      return put("]");
    case Kind::kTuple:
      put("(");
      all(iterate(value));
      return put(value.size == 1 ? ",)" : ")");
    case Kind::kNamespace:
    case Kind::kDict: {
      const bool is_dict = value.is(Kind::kDict);
      put(is_dict ? "{" : "<Namespace {");
      Value dict = value;
      if (!is_dict) {
        dict.entries = value.object->entries;
        dict.size = value.object->size;
      }
      const Level level(*this);
      bool is_first = true;
      for_each_entry(arena, dict, [&](const Value& key, const Value& entry) {
        count_steps(1);
        if (!std::exchange(is_first, false)) put(", ");
        write_repr(builder, key);
        put(": ");
        write_repr(builder, entry);
        return true;
      });
      return put(is_dict ? "}" : "}>");
    }
    case Kind::kView:
      put(fmt::format("dict_{}([", value.object->name));
      all(view_items(value));
      return put("])");
    case Kind::kRange:
      return put(value.range->step == 1
                     ? fmt::format("range({}, {})", value.range->start, value.range->stop)
                     : fmt::format("range({}, {}, {})", value.range->start, value.range->stop,
                                   value.range->step));
    case Kind::kLoop:
      return put(fmt::format("<LoopContext {}/{}>", value.object->at + 1, value.object->size));
    case Kind::kMacro:
      return put(fmt::format("<Macro {}>", value.object->name.empty()
                                               ? "anonymous"
                                               : repr_of_string(value.object->name)));
    default:
      refuse(fmt::format("the text of a value of type '{}'", type_name(value)));
  }
}

}  // namespace anabatic::io::jinja
