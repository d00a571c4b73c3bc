// SPDX-License-Identifier: Apache-2.0
// Template text to tokens, with trim_blocks and lstrip_blocks on.
#pragma once
#include <cstdint>
#include <deque>
#include <string>
#include <string_view>
#include <vector>

namespace anabatic::io::jinja {

enum class Lexeme : std::uint8_t {
  kData,
  kPrintBegin,  // {{
  kPrintEnd,
  kBlockBegin,  // {%
  kBlockEnd,
  kName,
  kString,
  kInteger,
  kFloat,
  kOperator,
  kEnd,
};

struct Token {
  Lexeme kind = Lexeme::kEnd;
  std::string_view text;  // of a string: what it stands for
  std::size_t at = 0;     // byte of the source
  bool is_operator(std::string_view spelling) const {
    return kind == Lexeme::kOperator && text == spelling;
  }
  bool is_name(std::string_view name) const { return kind == Lexeme::kName && text == name; }
};

// A template's text with "\n" at its line ends, and what its tokens refer to.
struct Source {
  std::string name, text;
  std::deque<std::string> strings;

  Source(std::string_view source, std::string_view name);
  // InvalidArgument, or Unsupported, that names line and column.
  [[noreturn]] void fail(std::size_t at, std::string_view message,
                         bool is_unsupported = false) const;
};

std::vector<Token> tokenize(Source& source);

}  // namespace anabatic::io::jinja
