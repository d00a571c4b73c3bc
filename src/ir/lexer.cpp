// SPDX-License-Identifier: Apache-2.0
#include "ir/lexer.h"

#include <algorithm>
#include <charconv>

#include "base/error.h"
#include "ir/text_form.h"
#include "spec/attributes.h"

namespace anabatic::ir {
namespace {

bool is_space(char c) { return c == ' ' || c == '\n' || c == '\t' || c == '\r'; }

}  // namespace

void Lexer::skip() {
  while (!at_end()) {
    if (is_space(text_[position_])) {
      ++position_;
    } else if (text_[position_] == '#') {
      position_ = std::min(text_.find('\n', position_), text_.size());
    } else {
      return;
    }
  }
}

std::string_view Lexer::take(std::size_t end) {
  const std::string_view token = text_.substr(position_, end - position_);
  position_ = end;
  skip();
  return token;
}

bool Lexer::accept(std::string_view expected) {
  if (text_.substr(position_, expected.size()) != expected) return false;
  const std::size_t end = position_ + expected.size();
  if (is_word(expected) && end < text_.size() && is_word_character(text_[end])) return false;
  take(end);
  return true;
}

void Lexer::expect(std::string_view expected) {
  if (!accept(expected)) fail_expected(fmt::format("'{}'", expected));
}

std::string_view Lexer::word(const char* what) {
  std::size_t end = position_;
  while (end < text_.size() && is_word_character(text_[end])) ++end;
  if (end == position_) fail_expected(what);
  return take(end);
}

std::size_t Lexer::string_end(std::size_t from) const {
  for (std::size_t i = from + 1; i < text_.size(); ++i) {
    if (text_[i] == '\\') {
      ++i;
    } else if (text_[i] == '"') {
      return i + 1;
    }
  }
  fail(from, "expected a closing '\"', got the end of the text");
}

std::string_view Lexer::attribute() {
  if (peek() == '"') return take(string_end(position_));
  if (peek() == '[') {
    const std::size_t close = text_.find(']', position_);
    if (close == std::string_view::npos)
      fail(position_, "expected a closing ']', got the end of the text");
    return take(close + 1);
  }
  std::size_t end = position_;
  while (end < text_.size() && (is_word_character(text_[end]) || text_[end] == '+')) ++end;
  if (end == position_) fail_expected("an attribute's value");
  return take(end);
}

std::string_view Lexer::type() {
  std::size_t end = position_;
  while (end < text_.size() && is_word_character(text_[end])) ++end;
  if (end == position_ || end == text_.size() || text_[end] != '[')
    fail_expected("a type such as f32[4,8]");
  end = text_.find(']', end);
  if (end == std::string_view::npos)
    fail(position_, "expected a closing ']', got the end of the text");
  ++end;
  if (end < text_.size() && text_[end] == '@')
    for (++end; end < text_.size() && is_word_character(text_[end]);) ++end;
  return take(end);
}

std::string Lexer::string(const char* what) {
  if (peek() != '"') fail_expected(what);
  return std::get<std::string>(spec::parse_attribute(take(string_end(position_))));
}

std::uint64_t Lexer::number(const char* what) {
  std::size_t end = position_;
  while (end < text_.size() && text_[end] >= '0' && text_[end] <= '9') ++end;
  std::uint64_t value = 0;
  const auto result = std::from_chars(text_.data() + position_, text_.data() + end, value);
  if (end == position_ || result.ec != std::errc{} || value > 0xFFFFFFFFu) fail_expected(what);
  take(end);
  return value;
}

void Lexer::fail(std::size_t at, const std::string& message) const {
  const std::string_view before = text_.substr(0, at);
  const auto line = std::count(before.begin(), before.end(), '\n') + 1;
  const std::size_t line_start = before.rfind('\n') + 1;  // 0 on the first line: npos + 1
  throw InvalidArgument(
      fmt::format("[graph text] line {}, column {}: {}", line, at - line_start + 1, message));
}

void Lexer::fail_expected(std::string_view what) const {
  if (at_end()) fail(position_, fmt::format("expected {}, got the end of the text", what));
  std::string_view rest = text_.substr(position_, 24);
  rest = rest.substr(0, rest.find('\n'));
  fail(position_, fmt::format("expected {}, got '{}'", what, rest));
}

}  // namespace anabatic::ir
