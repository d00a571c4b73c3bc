// SPDX-License-Identifier: Apache-2.0
// Values of a rendering: small, copied freely, and owned by the arena of the rendering.
#pragma once
#include <cstdint>
#include <cstring>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <type_traits>
#include <vector>

#include "base/json.h"

namespace anabatic::io::jinja {

// Who wrote a text: a field of a message, or with `message` -1 a variable. A null pointer to an
// Origin is the template. The origin of a whole message has no field yet.
struct Origin {
  std::int32_t message = -1;
  const std::string* field = nullptr;
};

struct Piece {
  std::uint32_t end = 0;  // byte offset
  bool is_generated = false;
  const Origin* origin = nullptr;
};

enum class Kind : std::uint8_t {
  kMissing,  // an argument that was not given, a variable that was not set
  kUndefined,
  kNone,
  kBool,
  kInt,
  kFloat,
  kString,
  kList,
  kTuple,
  kDict,
  kView,  // keys, values or items of a dict
  kRange,
  kIterator,  // consumed once, as a generator is
  kNamespace,
  kMacro,
  kMethod,
  kFunction,
  kLoop,
  kCycler,
  kJoiner,
};

struct Value;
struct Entry;
struct Builtin;
struct Node;
struct Frame;

// Pieces of a text with more than one source.
struct Pieces {
  std::uint32_t size = 0;
  const Piece* data = nullptr;
  std::span<const Piece> all() const { return {data, size}; }
};

struct Range {
  std::int64_t start = 0, stop = 0, step = 1;
  std::int64_t size() const;
};

struct Object;

struct Value {
  Kind kind = Kind::kMissing;
  bool is_json = false;      // a container that lies in the context
  bool is_pieced = false;    // a text with `pieces` in place of `origin`
  bool is_markup = false;    // a text marked `safe`, to which + adds escaped text
  bool is_messages = false;  // the list whose elements are messages
  bool is_group = false;     // a pair of groupby
  std::uint32_t size = 0;    // bytes of a text, elements of a container
  union {
    bool boolean;
    std::int64_t integer = 0;
    double number;
    const char* text;  // of a string; of an undefined value what is undefined
    const OrderedJson* json;
    const Value* items;
    const Entry* entries;
    const Range* range;
    Object* object;
    const Builtin* function;
  };
  union {
    const Origin* origin = nullptr;
    const Pieces* pieces;
  };

  std::string_view view() const { return {text, size}; }
  bool is(Kind other) const { return kind == other; }
  bool is_string() const { return kind == Kind::kString; }
  bool is_given() const { return kind != Kind::kMissing; }
  bool is_integral() const { return kind == Kind::kInt || kind == Kind::kBool; }
  bool is_number() const { return is_integral() || kind == Kind::kFloat; }
  // The origin at a byte of a text.
  Piece piece_at(std::size_t byte) const;
};

struct Entry {
  Value key, value;
};

// What has state or more parts than fit into a value.
struct Object {
  Value value;  // receiver of a method, dict of a view, separator, last `changed`
  const Value* items = nullptr;
  std::uint32_t size = 0, at = 0, depth = 0;
  Entry* entries = nullptr;  // of a namespace
  std::uint32_t capacity = 0;
  const Builtin* method = nullptr;
  std::string_view name;       // of a method, a view or a macro
  const Node* node = nullptr;  // a macro
  Frame* frame = nullptr;      // where it was defined
};

// Memory of one rendering, released as a whole.
class Arena {
 public:
  static constexpr std::size_t kLargest_bytes = std::size_t{256} << 20;
  static constexpr std::size_t kLargestPart_bytes = std::size_t{31} << 20;

  template <class T>
  T* make(std::size_t count) {
    static_assert(std::is_trivially_destructible_v<T>);
    T* data = static_cast<T*>(allocate(count * sizeof(T)));
    for (std::size_t i = 0; i < count; ++i) new (data + i) T();
    return data;
  }
  char* bytes(std::size_t count) { return static_cast<char*>(allocate(count)); }

  Arena();
  ~Arena();
  Arena(const Arena&) = delete;
  Arena& operator=(const Arena&) = delete;

 private:
  void* allocate(std::size_t bytes) {
    bytes = (bytes + 7) & ~std::size_t{7};
    if (bytes > room_) grow(bytes);
    room_ -= bytes;
    char* result = next_;
    next_ += bytes;
    return result;
  }
  void grow(std::size_t bytes);

  std::vector<std::unique_ptr<char[]>> chunks_;
  char* next_ = nullptr;
  std::size_t room_ = 0, total_ = 0;
};

inline Value none() {
  Value value;
  value.kind = Kind::kNone;
  return value;
}
inline Value boolean(bool truth) {
  Value value;
  value.kind = Kind::kBool;
  value.boolean = truth;
  return value;
}
inline Value integer(std::int64_t number) {
  Value value;
  value.kind = Kind::kInt;
  value.integer = number;
  return value;
}
inline Value real(double number) {
  Value value;
  value.kind = Kind::kFloat;
  value.number = number;
  return value;
}
// `text` must live as long as the rendering.
inline Value string(std::string_view text, const Origin* origin = nullptr) {
  Value value;
  value.kind = Kind::kString;
  value.text = text.data();
  value.size = static_cast<std::uint32_t>(text.size());
  value.origin = origin;
  return value;
}
inline Value undefined(std::string_view name) {
  Value value = string(name);
  value.kind = Kind::kUndefined;
  return value;
}
inline Value sequence(Kind kind, const Value* items, std::size_t size) {
  Value value;
  value.kind = kind;
  value.items = items;
  value.size = static_cast<std::uint32_t>(size);
  return value;
}
inline Value object(Kind kind, Object* data) {
  Value value;
  value.kind = kind;
  value.object = data;
  return value;
}

// A text that grows, with its sources.
class TextBuilder {
 public:
  static constexpr std::size_t kLargest_bytes = 10 << 20;

  void append(std::string_view text, const Origin* origin, bool is_generated = false) {
    if (text.empty()) return;
    text_.append(text);
    close_piece(origin, is_generated);
  }
  // An empty text of a message leaves an empty piece, so that its place is known.
  void append(const Value& string) { append(string, 0, string.size); }
  void append(const Value& string, std::size_t begin, std::size_t end);  // bytes of it
  // One that came from `source` at its byte `at`.
  void append(std::string_view text, const Value& source, std::size_t at) {
    const Piece piece = source.piece_at(at);
    append(text, piece.origin, piece.is_generated);
  }
  void mark_generated() {
    for (Piece& piece : pieces_) piece.is_generated = true;
  }
  void clear() {
    text_.clear();
    pieces_.clear();
  }
  // A value in the arena; the builder is empty then.
  Value take(Arena& arena);
  const std::string& text() const { return text_; }
  std::size_t capacity() const { return text_.capacity(); }
  const std::vector<Piece>& pieces() const { return pieces_; }

 private:
  void close_piece(const Origin* origin, bool is_generated);
  void mark_place(const Origin* origin) {
    if (origin != nullptr && origin->message >= 0) close_piece(origin, false);
  }

  std::string text_;
  std::vector<Piece> pieces_;
};

// A part of a text, in bytes.
Value slice_text(Arena& arena, const Value& string, std::size_t begin, std::size_t end);

// A value of the context. Elements of containers are made when they are read.
Value from_json(const OrderedJson& json, const Origin* origin);
Value json_element(Arena& arena, const Value& list, std::size_t i);
const Origin* member_origin(Arena& arena, const Origin* dict, const std::string& key);

// Visits the entries of a dict in order: visit(key, value) returns false to end.
template <class Visit>
void for_each_entry(Arena& arena, const Value& dict, Visit visit) {
  if (!dict.is_json) {
    for (std::uint32_t i = 0; i < dict.size; ++i)
      if (!visit(dict.entries[i].key, dict.entries[i].value)) return;
    return;
  }
  for (const auto& [key, value] : dict.json->get_ref<const OrderedJson::object_t&>()) {
    const Origin* origin = member_origin(arena, dict.origin, key);
    if (!visit(string(key, origin), from_json(value, origin))) return;
  }
}

const char* type_name(const Value& value);  // as Python names it

// An operation that Python refuses; the interpreter adds the place.
struct Failure {
  std::string message;
  bool is_unsupported = false;
};
[[noreturn]] void fail(std::string message);
[[noreturn]] void refuse(std::string message);  // what jinja2 can do and nothing here

}  // namespace anabatic::io::jinja
