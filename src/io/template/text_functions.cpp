// SPDX-License-Identifier: Apache-2.0
#include "io/template/text_functions.h"

#include <fmt/core.h>
#include <fmt/format.h>

#include <algorithm>
#include <cmath>

namespace anabatic::io::jinja {

Value stripped(Interpreter& in, const Value& text, const Value& chars, bool left, bool right) {
  std::optional<std::string_view> set;
  if (chars.is_given() && !chars.is(Kind::kNone))
    set = in.expect_string(chars, "the characters to strip").view();
  in.count_bytes(text.size);
  const Stripped part = strip(text.view(), set, left, right);
  return slice_text(in.arena, text, part.begin, part.end);
}

Value in_case(Interpreter& in, const Value& text, Case wanted) {
  const Interpreter::Buffer buffer(in);
  in.count_bytes(16 * std::size_t{text.size});
  std::string mapped;
  for (std::size_t at = 0; at < text.size;) {
    const std::size_t begin = at;
    const Piece piece = text.piece_at(at);
    mapped.clear();
    while (at < piece.end) {
      append_in_case(mapped, text.view(), at, wanted);
      next_character(text.view(), at);
    }
    buffer->append(mapped, text, begin);
  }
  return buffer.builder.take(in.arena);
}

Value capitalized(Interpreter& in, const Value& text) {
  if (text.size == 0) return text;
  Interpreter::Buffer buffer(in);
  std::string first;
  append_in_case(first, text.view(), 0, Case::kTitle);
  buffer->append(first, text, 0);
  const Value lower = in_case(in, text, Case::kLower);
  std::size_t rest = 0, lower_first = 0;
  next_character(text.view(), rest);
  std::string mapped;
  append_in_case(mapped, text.view(), 0, Case::kLower);
  lower_first = mapped.size();
  buffer->append(lower, lower_first, lower.size);
  return buffer.take();
}

Value replaced(Interpreter& in, const Value& text, const Value& from, const Value& to,
               const Value& count) {
  const std::string_view all = text.view(), old = from.view();
  std::int64_t left =
      count.is_given() && !count.is(Kind::kNone) ? in.expect_integer(count, "the count") : -1;
  in.count_bytes(text.size);
  if (!old.empty() && all.find(old) == std::string_view::npos) return text;
  Interpreter::Buffer buffer(in);
  std::size_t done = 0;
  if (old.empty()) {
    for (std::size_t at = 0; left != 0; --left) {
      buffer->append(to);
      if (at == all.size()) break;
      done = at;
      next_character(all, at);
      buffer->append(text, done, at);
      done = at;
    }
  } else {
    for (std::size_t at; left != 0 && (at = all.find(old, done)) != std::string_view::npos;
         --left) {
      buffer->append(text, done, at);
      buffer->append(to);
      done = at + old.size();
    }
  }
  buffer->append(text, done, all.size());
  return buffer.take();
}

Value joined(Interpreter& in, const Value& separator, std::span<const Value> items,
             bool takes_all) {
  Interpreter::Buffer buffer(in);
  in.count_steps(items.size() >> 2);
  for (std::size_t i = 0; i < items.size(); ++i) {
    if (i > 0) buffer->append(separator);
    if (takes_all)
      in.write(*buffer, items[i]);
    else
      buffer->append(in.expect_string(items[i], "an item to join"));
  }
  return buffer.take();
}

std::vector<Value> lines_of(Interpreter& in, const Value& text, bool keeps_ends) {
  std::vector<Value> lines;
  std::size_t begin = 0;
  for (std::size_t at = 0; at < text.size;) {
    const std::size_t end = at;
    const char32_t character = next_character(text.view(), at);
    if (!is_line_end(character)) continue;
    if (character == '\r' && at < text.size && text.view()[at] == '\n') ++at;
    lines.push_back(slice_text(in.arena, text, begin, keeps_ends ? at : end));
    begin = at;
  }
  if (begin < text.size) lines.push_back(slice_text(in.arena, text, begin, text.size));
  in.count_steps(lines.size());
  return lines;
}

bool is_all_in_case(std::string_view text, bool upper) {
  bool found = false;
  for (std::size_t at = 0; at < text.size();) {
    const char32_t character = next_character(text, at);
    if (!has_case(character)) continue;
    if (upper ? !is_upper(character) : !is_lower(character)) return false;
    found = true;
  }
  return found;
}

namespace {

// json.dumps of Python.
class JsonWriter {
 public:
  JsonWriter(Interpreter& in, TextBuilder& builder, const Value& ensure_ascii, const Value& indent,
             const Value& separators, const Value& sort_keys)
      : in_(in),
        builder_(builder),
        is_ascii_(in.truth(ensure_ascii)),
        is_sorted_(in.truth(sort_keys)) {
    const bool has_indent = indent.is_given() && !indent.is(Kind::kNone);
    if (has_indent) {
      is_indented_ = true;
      item_ = ",";
      if (indent.is_string())
        indent_ = indent.view();
      else
        indent_.assign(static_cast<std::size_t>(
                           std::clamp<std::int64_t>(in.expect_integer(indent, "indent"), 0, 1000)),
                       ' ');
    }
    if (!separators.is_given() || separators.is(Kind::kNone)) return;
    const auto both = in.iterate(separators);
    if (both.size() != 2) fail("separators must be two texts");
    item_ = in.expect_string(both[0], "a separator").view();
    key_ = in.expect_string(both[1], "a separator").view();
  }

  void write(const Value& value, std::size_t depth) {
    in_.count_steps(1);
    switch (value.kind) {
      case Kind::kString: {
        for (std::size_t at = 0; at < value.size || at == 0;) {
          const Piece piece = value.piece_at(at);
          std::string part;
          append_json_string(part, value.view().substr(at, piece.end - at), is_ascii_);
          const bool begins = at == 0, ends = piece.end == value.size;
          builder_.append(std::string_view(part).substr(!begins, part.size() - !begins - !ends),
                          piece.origin, piece.is_generated);
          at = piece.end;
          if (ends) return;
        }
        return;
      }
      case Kind::kList:
      case Kind::kTuple: {
        const auto items = in_.iterate(value);
        return container("[]", items.size(), value.origin, depth,
                         [&](std::size_t i) { write(items[i], depth + 1); });
      }
      case Kind::kDict: {
        std::vector<Entry> entries;
        for_each_entry(in_.arena, value, [&](const Value& key, const Value& entry) {
          entries.push_back({key, entry});
          return true;
        });
        if (is_sorted_)
          std::stable_sort(entries.begin(), entries.end(),
                           [&](const Entry& a, const Entry& b) { return in_.less(a.key, b.key); });
        return container("{}", entries.size(), value.origin, depth, [&](std::size_t i) {
          write_key(entries[i].key);
          builder_.append(key_, value.origin);
          write(entries[i].value, depth + 1);
        });
      }
      default:
        scalar(value);
    }
  }

 private:
  void scalar(const Value& value) {
    if (value.is(Kind::kNone)) return builder_.append("null", value.origin);
    if (value.is(Kind::kBool))
      return builder_.append(value.boolean ? "true" : "false", value.origin);
    if (value.is(Kind::kInt))
      return builder_.append(fmt::format_int(value.integer).c_str(), value.origin);
    if (!value.is(Kind::kFloat))
      fail(fmt::format("an object of type {} is not JSON serializable", type_name(value)));
    builder_.append(std::isnan(value.number)   ? "NaN"
                    : std::isinf(value.number) ? (value.number < 0 ? "-Infinity" : "Infinity")
                                               : repr_of_number(value.number),
                    value.origin);
  }
  void write_key(const Value& key) {
    if (key.is_string()) return write(key, 0);
    if (!key.is_number() && !key.is(Kind::kNone))
      fail("keys must be str, int, float, bool or None");
    builder_.append("\"", key.origin);
    scalar(key);
    builder_.append("\"", key.origin);
  }
  void new_line(std::size_t depth, const Origin* origin) {
    if (!is_indented_) return;
    builder_.append("\n", origin);
    for (std::size_t i = 0; i < depth; ++i) builder_.append(indent_, origin);
  }
  template <class Write>
  void container(std::string_view brackets, std::size_t size, const Origin* origin,
                 std::size_t depth, Write write_item) {
    const Interpreter::Level level(in_);
    // What a message has below its fields is the field's; the whole message is the template's.
    const Origin* own = origin && origin->field ? origin : nullptr;
    builder_.append(brackets.substr(0, 1), own);
    for (std::size_t i = 0; i < size; ++i) {
      if (i > 0) builder_.append(item_, own);
      new_line(depth + 1, own);
      write_item(i);
    }
    if (size > 0) new_line(depth, own);
    builder_.append(brackets.substr(1), own);
  }

  Interpreter& in_;
  TextBuilder& builder_;
  bool is_ascii_, is_sorted_, is_indented_ = false;
  std::string indent_, item_ = ", ", key_ = ": ";
};

}  // namespace

void write_json(Interpreter& in, TextBuilder& builder, const Value& value,
                const Value& ensure_ascii, const Value& indent, const Value& separators,
                const Value& sort_keys) {
  JsonWriter(in, builder, ensure_ascii, indent, separators, sort_keys).write(value, 0);
}

}  // namespace anabatic::io::jinja
