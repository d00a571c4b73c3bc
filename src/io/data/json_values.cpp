// SPDX-License-Identifier: Apache-2.0
#include "io/data/json_values.h"

#include <algorithm>

#include "base/error.h"
#include "base/json.h"
#include "io/data/field_names.h"

namespace anabatic::io {
namespace {

constexpr std::string_view kByteOrderMark = "\xEF\xBB\xBF";

bool is_json_space(char byte) {
  return byte == ' ' || byte == '\t' || byte == '\n' || byte == '\r';
}

}  // namespace

LineReader::LineReader(const std::filesystem::path& path, std::int64_t max_bytes)
    : source_(path), max_bytes_(max_bytes) {}

bool LineReader::next(std::string_view& line) {
  std::size_t searched = position_;
  std::size_t newline;
  while ((newline = buffer_.find('\n', searched)) == std::string::npos && !at_end_) {
    buffer_.erase(0, position_);
    position_ = 0;
    searched = buffer_.size();
    ANABATIC_REQUIRE(static_cast<std::int64_t>(searched) <= max_bytes_,
                     "[data] {}:{}: expected a line of at most {} bytes, got more",
                     source_.path().string(), line_number_ + 1, max_bytes_);
    at_end_ = append_part(source_, buffer_) < kPartBytes;
  }
  if (newline == std::string::npos && position_ == buffer_.size()) return false;
  const std::size_t end = newline == std::string::npos ? buffer_.size() : newline;
  line = std::string_view(buffer_).substr(position_, end - position_);
  if (line.ends_with('\r')) line.remove_suffix(1);
  position_ = newline == std::string::npos ? end : end + 1;
  ++line_number_;
  ANABATIC_REQUIRE(static_cast<std::int64_t>(line.size()) <= max_bytes_,
                   "[data] {}:{}: expected a line of at most {} bytes, got {}",
                   source_.path().string(), line_number_, max_bytes_, line.size());
  return true;
}

JsonValueReader::JsonValueReader(const std::filesystem::path& path, std::int64_t max_bytes)
    : source_(path), max_bytes_(max_bytes) {}

void JsonValueReader::fail(std::string_view expected, int got) const {
  throw InvalidArgument(fmt::format(
      "[data] {}:{}: expected {}, got {}; is the file whole?", source_.path().string(), line_,
      expected, got < 0 ? "the end of the file" : fmt::format("'{}'", static_cast<char>(got))));
}

bool JsonValueReader::fill() {
  if (at_end_) return false;
  buffer_.erase(0, position_);
  position_ = 0;
  const std::size_t count = append_part(source_, buffer_);
  at_end_ = count < kPartBytes;
  return count > 0;
}

void JsonValueReader::advance() { line_ += buffer_[position_++] == '\n' ? 1 : 0; }

int JsonValueReader::peek() {
  while (true) {
    while (position_ < buffer_.size() && is_json_space(buffer_[position_])) advance();
    if (position_ < buffer_.size()) return static_cast<unsigned char>(buffer_[position_]);
    if (!fill()) return -1;
  }
}

std::size_t JsonValueReader::value_size() {
  int depth = 0;
  bool is_in_string = false;
  const char first = buffer_[position_];
  const bool is_scalar = first != '{' && first != '[' && first != '"';
  for (std::size_t at = 0;; ++at) {
    ANABATIC_REQUIRE(static_cast<std::int64_t>(at) <= max_bytes_,
                     "[data] {}:{}: expected a JSON value of at most {} bytes, got more",
                     source_.path().string(), line_, max_bytes_);
    while (position_ + at >= buffer_.size())
      if (!fill()) return buffer_.size() - position_;
    const char byte = buffer_[position_ + at];
    if (is_in_string) {
      if (byte == '\\') ++at;
      if (byte == '"') is_in_string = false;
      if (byte == '"' && depth == 0) return at + 1;
    } else if (is_scalar) {
      if (is_json_space(byte) || byte == ',' || byte == ']' || byte == '}')
        return std::max<std::size_t>(at, 1);
    } else if (byte == '"') {
      is_in_string = true;
    } else if (byte == '{' || byte == '[') {
      ++depth;
    } else if ((byte == '}' || byte == ']') && --depth == 0) {
      return at + 1;
    }
  }
}

bool JsonValueReader::next(std::string_view& value) {
  if (!has_begun_) {
    fill();
    if (buffer_.starts_with(kByteOrderMark)) position_ = kByteOrderMark.size();
    is_array_ = peek() == '[';
    if (is_array_) advance();
    if (is_array_ && peek() == ']') {
      advance();
      is_closed_ = true;
    }
  } else if (is_array_ && !is_closed_) {
    const int got = peek();
    if (got != ',' && got != ']') fail("a comma or the end of the array", got);
    advance();
    is_closed_ = got == ']';
  }
  has_begun_ = true;
  const int first = peek();
  if (is_closed_ && first >= 0) fail("nothing after the array", first);
  if (first < 0 && is_array_ && !is_closed_) fail("a value or the end of the array", first);
  if (first < 0) return false;
  value_line_ = line_;
  const std::size_t size = value_size();
  value = std::string_view(buffer_).substr(position_, size);
  line_ += std::count(value.begin(), value.end(), '\n');
  position_ += size;
  return true;
}

namespace {

// The objective that has such rows.
std::string_view hint_of(const Json& row) {
  if (row.contains("messages") || row.contains("completion"))
    return "; train.objective: sft trains on such rows";
  return row.contains("chosen") ? "; train.objective: dpo trains on such rows" : "";
}

}  // namespace

std::string text_of_record(std::string_view record, const std::string& field) {
  Json value;
  try {
    value = parse_json(record);
  } catch (const Json::exception& error) {
    throw InvalidArgument(fmt::format("expected a JSON object, got: {}", error.what()));
  }
  ANABATIC_REQUIRE(value.is_object(), "expected a JSON object, got {}{}", value.type_name(),
                   value.is_array() ? "; data.format: json reads a file that is one array" : "");
  const auto text = value.find(field);
  ANABATIC_REQUIRE(text != value.end(),
                   "expected the field \"{}\", which is missing; the object has {}{}", field,
                   field_names(value), hint_of(value));
  ANABATIC_REQUIRE(text->is_string(), "expected a string in the field \"{}\", got {}", field,
                   text->type_name());
  return std::move(text->get_ref<std::string&>());
}

}  // namespace anabatic::io
