// SPDX-License-Identifier: Apache-2.0
// Cuts graph text into tokens and knows the position of each, for the parser's errors.
#pragma once
#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

namespace anabatic::ir {

class Lexer {
 public:
  explicit Lexer(std::string_view text) : text_(text) { skip(); }

  bool at_end() const { return position_ == text_.size(); }
  char peek() const { return at_end() ? '\0' : text_[position_]; }
  std::size_t position() const { return position_; }

  // Consumes `expected` if it comes next (a whole word when it is one).
  bool accept(std::string_view expected);
  void expect(std::string_view expected);

  std::string_view word(const char* what);  // one or more word characters
  std::string_view attribute();             // STRING, [LIST] or a bare value, as written
  std::string_view type();                  // DTYPE[SIZES] or DTYPE[SIZES]@LAYOUT, as written
  std::string string(const char* what);     // unquoted
  std::uint64_t number(const char* what);   // decimal digits; an error above 2^32
  std::string_view slice(std::size_t from, std::size_t length) const {
    return text_.substr(from, length);
  }

  // InvalidArgument "[graph text] line L, column C: MESSAGE"; `at` is a position.
  [[noreturn]] void fail(std::size_t at, const std::string& message) const;
  // "[graph text] line L, column C: expected WHAT, got ..." at the current position.
  [[noreturn]] void fail_expected(std::string_view what) const;

 private:
  void skip();  // white space and comments
  std::string_view take(std::size_t end);
  std::size_t string_end(std::size_t from) const;  // one past the closing quote

  std::string_view text_;
  std::size_t position_ = 0;
};

}  // namespace anabatic::ir
