// SPDX-License-Identifier: Apache-2.0
#include "io/template/value.h"

#include <fmt/core.h>

#include <algorithm>

namespace anabatic::io::jinja {

void fail(std::string message) { throw Failure{std::move(message), false}; }
void refuse(std::string message) { throw Failure{std::move(message), true}; }

std::int64_t Range::size() const {
  if (step > 0) return start < stop ? (stop - start - 1) / step + 1 : 0;
  return stop < start ? (start - stop - 1) / -step + 1 : 0;
}

Piece Value::piece_at(std::size_t byte) const {
  if (!is_pieced) return {size, false, origin};
  const auto all = pieces->all();
  return *std::upper_bound(all.begin(), all.end() - 1, byte,
                           [](std::size_t at, const Piece& piece) { return at < piece.end; });
}

namespace {
// The first chunk of the arenas of a thread, kept from one to the next.
constexpr std::size_t kFirstChunk_bytes = 1 << 17;
thread_local std::unique_ptr<char[]> kept_chunk;
}  // namespace

Arena::Arena() : room_(kFirstChunk_bytes), total_(kFirstChunk_bytes) {
  chunks_.push_back(kept_chunk ? std::move(kept_chunk)
                               : std::unique_ptr<char[]>(new char[kFirstChunk_bytes]));
  next_ = chunks_[0].get();
}
Arena::~Arena() { kept_chunk = std::move(chunks_[0]); }

void Arena::grow(std::size_t bytes) {
  const std::size_t wanted = std::max(bytes, std::min<std::size_t>(total_, 1 << 20));
  if (bytes > kLargestPart_bytes)
    fail(fmt::format("a value of more than {} MiB", kLargestPart_bytes >> 20));
  if (total_ + wanted > kLargest_bytes)
    fail(fmt::format("the rendering takes more than {} MiB", kLargest_bytes >> 20));
  chunks_.emplace_back(new char[wanted]);
  next_ = chunks_.back().get();
  room_ = wanted;
  total_ += wanted;
}

void TextBuilder::append(const Value& string, std::size_t begin, std::size_t end) {
  if (!string.is_pieced) {
    if (begin == end) return mark_place(string.origin);
    append(string.view().substr(begin, end - begin), string.origin);
    return;
  }
  std::size_t at = 0;
  for (const Piece& piece : string.pieces->all()) {
    const std::size_t from = std::max(at, begin), to = std::min<std::size_t>(piece.end, end);
    if (from < to)
      append(string.view().substr(from, to - from), piece.origin, piece.is_generated);
    else if (piece.end == at && at >= begin && at <= end)
      mark_place(piece.origin);
    at = piece.end;
  }
}

void TextBuilder::close_piece(const Origin* origin, bool is_generated) {
  if (text_.size() > kLargest_bytes)
    fail(fmt::format("a text of more than {} MiB", kLargest_bytes >> 20));
  const auto end = static_cast<std::uint32_t>(text_.size());
  if (!pieces_.empty()) {
    Piece& last = pieces_.back();
    const bool is_same = last.origin == origin ||
                         (origin && last.origin && last.origin->message == origin->message &&
                          last.origin->field == origin->field);
    if (is_same && last.is_generated == is_generated) {
      last.end = end;
      return;
    }
  }
  pieces_.push_back({end, is_generated, origin});
}

Value TextBuilder::take(Arena& arena) {
  Value value = string({});
  if (!pieces_.empty()) {
    char* bytes = arena.bytes(text_.size());
    std::memcpy(bytes, text_.data(), text_.size());
    value = string({bytes, text_.size()}, pieces_[0].origin);
    if (pieces_.size() > 1 || pieces_[0].is_generated) {
      Piece* copy = arena.make<Piece>(pieces_.size());
      std::copy(pieces_.begin(), pieces_.end(), copy);
      Pieces* pieces = arena.make<Pieces>(1);
      *pieces = {static_cast<std::uint32_t>(pieces_.size()), copy};
      value.is_pieced = true;
      value.pieces = pieces;
    }
  }
  clear();
  return value;
}

Value slice_text(Arena& arena, const Value& whole, std::size_t begin, std::size_t end) {
  if (begin >= end) return string({}, whole.is_pieced ? nullptr : whole.origin);
  Value part = whole;
  part.text += begin;
  part.size = static_cast<std::uint32_t>(end - begin);
  if (!whole.is_pieced) return part;
  const auto all = whole.pieces->all();
  std::size_t first = 0;
  while (all[first].end <= begin) ++first;
  std::size_t last = first;
  while (all[last].end < end) ++last;
  if (first == last && !all[first].is_generated) {
    part.is_pieced = false;
    part.origin = all[first].origin;
    return part;
  }
  Piece* copy = arena.make<Piece>(last - first + 1);
  for (std::size_t i = first; i <= last; ++i) {
    copy[i - first] = all[i];
    copy[i - first].end =
        static_cast<std::uint32_t>(std::min<std::size_t>(all[i].end, end) - begin);
  }
  Pieces* pieces = arena.make<Pieces>(1);
  *pieces = {static_cast<std::uint32_t>(last - first + 1), copy};
  part.pieces = pieces;
  return part;
}

Value from_json(const OrderedJson& json, const Origin* origin) {
  Value value;
  switch (json.type()) {
    case OrderedJson::value_t::boolean:
      value = boolean(json.get<bool>());
      break;
    case OrderedJson::value_t::number_integer:
      value = integer(json.get<std::int64_t>());
      break;
    case OrderedJson::value_t::number_unsigned:
      if (json.get<std::uint64_t>() > INT64_MAX) refuse("an integer beyond 2^63 in the data");
      value = integer(json.get<std::int64_t>());
      break;
    case OrderedJson::value_t::number_float:
      value = real(json.get<double>());
      break;
    case OrderedJson::value_t::string:
      return string(json.get_ref<const std::string&>(), origin);
    case OrderedJson::value_t::array:
    case OrderedJson::value_t::object:
      value.kind = json.is_array() ? Kind::kList : Kind::kDict;
      value.is_json = true;
      value.json = &json;
      value.size = static_cast<std::uint32_t>(json.size());
      break;
    default:
      return none();
  }
  value.origin = origin;
  return value;
}

Value json_element(Arena& arena, const Value& list, std::size_t i) {
  if (!list.is_messages) return from_json((*list.json)[i], list.origin);
  Origin* origin = arena.make<Origin>(1);
  origin->message = static_cast<std::int32_t>(i);
  return from_json((*list.json)[i], origin);
}

const Origin* member_origin(Arena& arena, const Origin* dict, const std::string& key) {
  if (dict == nullptr || dict->field != nullptr) return dict;
  Origin* origin = arena.make<Origin>(1);
  *origin = {dict->message, &key};
  return origin;
}

const char* type_name(const Value& value) {
  constexpr const char* kNames[] = {"missing",   "Undefined", "NoneType",    "bool",      "int",
                                    "float",     "str",       "list",        "tuple",     "dict",
                                    "dict view", "range",     "generator",   "Namespace", "Macro",
                                    "method",    "function",  "LoopContext", "Cycler",    "Joiner"};
  return kNames[static_cast<int>(value.kind)];
}

}  // namespace anabatic::io::jinja
