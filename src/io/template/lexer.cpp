// SPDX-License-Identifier: Apache-2.0
#include "io/template/lexer.h"

#include <fmt/core.h>

#include <algorithm>

#include "base/error.h"
#include "io/template/python_text.h"

namespace anabatic::io::jinja {
namespace {

bool is_digit(char c, int base = 10) {
  const int lower = c | 0x20;
  return base > 10 ? is_digit(c) || (lower >= 'a' && lower <= 'f') : c >= '0' && c < '0' + base;
}

class Lexer {
 public:
  explicit Lexer(Source& source) : source_(source), text_(source.text) {}

  std::vector<Token> run() {
    while (at_ < text_.size()) {
      const std::size_t tag = next_tag();
      const char kind = tag < text_.size() ? text_[tag + 1] : ' ';
      const char sign = tag + 2 < text_.size() ? text_[tag + 2] : ' ';
      const bool is_raw = kind == '%' && matches_raw(tag);
      add_data(at_, tag, kind == ' ' ? '+' : sign, kind == '{');
      if (tag == text_.size()) break;
      const std::size_t begin = tag;
      at_ = tag + 2 + (sign == '-' || sign == '+');
      if (kind == '#') {
        skip_comment(begin);
      } else if (is_raw) {
        add_raw(begin);
      } else {
        add(kind == '{' ? Lexeme::kPrintBegin : Lexeme::kBlockBegin, begin, at_);
        read_tag(kind == '{');
      }
      starts_line_ = at_ > 0 && text_[at_ - 1] == '\n';
    }
    add(Lexeme::kEnd, text_.size(), text_.size());
    return std::move(tokens_);
  }

 private:
  void add(Lexeme kind, std::size_t begin, std::size_t end) {
    tokens_.push_back({kind, text_.substr(begin, end - begin), begin});
  }
  bool has(std::string_view word, std::size_t at) const {
    return at <= text_.size() && text_.substr(at).starts_with(word);
  }

  std::size_t next_tag() const {
    for (std::size_t at = at_;; ++at) {
      at = text_.find('{', at);
      if (at == std::string_view::npos || at + 1 >= text_.size()) return text_.size();
      const char next = text_[at + 1];
      if (next == '%' || next == '{' || next == '#') return at;
    }
  }
  std::size_t skip_space(std::size_t at) const {
    while (at < text_.size()) {
      std::size_t next = at;
      if (!is_space(next_character(text_, next))) break;
      at = next;
    }
    return at;
  }
  // Text up to a tag. Where the tag has no sign and begins its line, the space before it goes.
  void add_data(std::size_t begin, std::size_t end, char sign, bool is_print) {
    if (sign == '-') {
      end = begin + strip(text_.substr(begin, end - begin), std::nullopt, false, true).end;
    } else if (sign != '+' && !is_print) {
      const std::size_t newline = text_.substr(begin, end - begin).rfind('\n');
      const bool has_newline = newline != std::string_view::npos;
      const std::size_t line = has_newline ? begin + newline + 1 : begin;
      if ((has_newline || starts_line_) && std::min(skip_space(line), end) == end) end = line;
    }
    if (begin < end) add(Lexeme::kData, begin, end);
  }
  // The byte after the end of a tag, "%}" or "#}", that begins at `at`, with its sign; 0 if none
  // does.
  std::size_t tag_end(std::string_view end, std::size_t at, bool takes_plus = true) const {
    if (has("-", at) && has(end, at + 1)) return skip_space(at + 3);
    if (takes_plus && has("+", at) && has(end, at + 1)) return at + 3;
    if (!has(end, at)) return 0;
    return at + 2 + (takes_plus && has("\n", at + 2));
  }
  // {% raw %}, and where its content begins.
  bool matches_raw(std::size_t tag) {
    std::size_t at = tag + 2;
    if (has("-", at) || has("+", at)) ++at;
    at = skip_space(at);
    if (!has("raw", at)) return false;
    at = skip_space(at + 3);
    raw_begin_ = has("-%}", at) ? skip_space(at + 3) : has("%}", at) ? at + 2 : 0;
    return raw_begin_ != 0;
  }
  void add_raw(std::size_t begin) {
    for (std::size_t at = raw_begin_; (at = text_.find("{%", at)) != std::string_view::npos; ++at) {
      const char sign = at + 2 < text_.size() ? text_[at + 2] : ' ';
      std::size_t word = skip_space(at + 2 + (sign == '-' || sign == '+'));
      if (!has("endraw", word)) continue;
      const std::size_t end = tag_end("%}", skip_space(word + 6));
      if (end == 0) continue;
      starts_line_ = raw_begin_ > 0 && text_[raw_begin_ - 1] == '\n';
      add_data(raw_begin_, at, sign, false);
      at_ = end;
      return;
    }
    source_.fail(begin, "missing end of raw directive");
  }
  void skip_comment(std::size_t begin) {
    for (std::size_t at = at_; at < text_.size(); ++at) {
      const std::size_t end = tag_end("#}", at);
      if (end == 0) continue;
      at_ = end;
      return;
    }
    if (at_ < text_.size()) source_.fail(begin, "missing end of comment tag");
  }

  void read_tag(bool is_print) {
    const std::size_t begin = tokens_.back().at;
    std::string open;
    for (;;) {
      if (open.empty()) {
        const std::size_t end = tag_end(is_print ? "}}" : "%}", at_, !is_print);
        if (end != 0) {
          add(is_print ? Lexeme::kPrintEnd : Lexeme::kBlockEnd, at_, end);
          at_ = end;
          return;
        }
      }
      const std::size_t next = skip_space(at_);
      if (next == text_.size()) source_.fail(begin, "unexpected end of template in this tag");
      if (next == at_) read_token(open);
      if (next != at_ && next > at_) at_ = next;
    }
  }
  void read_token(std::string& open) {
    const std::size_t begin = at_;
    const char c = text_[at_];
    if (is_digit(c)) return read_number();
    if (c == '\'' || c == '"') return read_string(c);
    std::size_t end = begin;
    while (end < text_.size()) {
      std::size_t next = end;
      if (!is_name_part(next_character(text_, next))) break;
      end = next;
    }
    if (end > begin) {
      add(Lexeme::kName, begin, at_ = end);
      return;
    }
    for (const std::string_view two : {"==", "!=", ">=", "<=", "//", "**"})
      if (has(two, begin)) return add(Lexeme::kOperator, begin, at_ = begin + 2);
    if (std::string_view("+-/*%~[](){}<>=.:|,;").find(c) == std::string_view::npos)
      source_.fail(begin, fmt::format("unexpected character '{}'",
                                      text_.substr(begin, byte_of(text_.substr(begin), 1))));
    if (c == '(' || c == '[' || c == '{') open += c == '(' ? ')' : c == '[' ? ']' : '}';
    if (c == ')' || c == ']' || c == '}') {
      if (open.empty() || open.back() != c) source_.fail(begin, fmt::format("unexpected '{}'", c));
      open.pop_back();
    }
    add(Lexeme::kOperator, begin, at_ = begin + 1);
  }

  // Digits with single underscores between them, from `at`.
  std::size_t skip_digits(std::size_t at, int base = 10) const {
    while (at < text_.size() &&
           (is_digit(text_[at], base) ||
            (text_[at] == '_' && at + 1 < text_.size() && is_digit(text_[at + 1], base))))
      ++at;
    return at;
  }
  void read_number() {
    const std::size_t begin = at_;
    const auto digit_at = [&](std::size_t at) { return at < text_.size() && is_digit(text_[at]); };
    std::size_t end = skip_digits(begin);
    bool is_float = false;
    if (begin == 0 || text_[begin - 1] != '.') {
      if (has(".", end) && digit_at(end + 1)) {
        end = skip_digits(end + 1);
        is_float = true;
      }
      if (has("e", end) || has("E", end)) {
        const std::size_t exponent = end + 1 + (has("+", end + 1) || has("-", end + 1));
        if (digit_at(exponent)) {
          end = skip_digits(exponent);
          is_float = true;
        }
      }
    }
    if (!is_float && text_[begin] == '0') {
      const char letter =
          begin + 1 < text_.size() ? static_cast<char>(text_[begin + 1] | 0x20) : ' ';
      const int base = letter == 'x' ? 16 : letter == 'o' ? 8 : letter == 'b' ? 2 : 0;
      const std::size_t digits = begin + 2 + has("_", begin + 2);
      if (base != 0 && digits < text_.size() && is_digit(text_[digits], base)) {
        end = skip_digits(digits, base);
      } else {
        end = begin;
        while (has("0", end) || (has("_0", end) && end > begin)) ++end;
      }
    }
    add(is_float ? Lexeme::kFloat : Lexeme::kInteger, begin, at_ = end);
  }

  void read_string(char quote) {
    const std::size_t begin = at_++;
    std::string value;
    while (at_ < text_.size() && text_[at_] != quote) {
      const char c = text_[at_++];
      if (c != '\\')
        value += c;
      else if (at_ < text_.size())
        read_escape(value);
    }
    if (at_ >= text_.size()) source_.fail(begin, "a string without an end");
    ++at_;
    source_.strings.push_back(std::move(value));
    tokens_.push_back({Lexeme::kString, source_.strings.back(), begin});
  }
  void read_escape(std::string& value) {
    const std::size_t begin = at_ - 1;
    const char c = text_[at_++];
    const std::size_t simple = std::string_view("\\'\"abfnrtv").find(c);
    if (simple != std::string_view::npos) {
      value += "\\'\"\a\b\f\n\r\t\v"[simple];
    } else if (is_digit(c, 8)) {
      std::size_t end = at_;
      while (end < at_ + 2 && end < text_.size() && is_digit(text_[end], 8)) ++end;
      append_character(value, static_cast<char32_t>(std::stoi(
                                  std::string(text_.substr(at_ - 1, end - at_ + 1)), nullptr, 8)));
      at_ = end;
    } else if (c == 'x' || c == 'u' || c == 'U') {
      const std::size_t count = c == 'x' ? 2 : c == 'u' ? 4 : 8;
      const std::string_view digits = text_.substr(at_, count);
      const bool is_hex =
          std::all_of(digits.begin(), digits.end(), [](char d) { return is_digit(d, 16); });
      if (digits.size() < count || !is_hex) source_.fail(begin, "truncated escape");
      const auto character = static_cast<char32_t>(std::stoul(std::string(digits), nullptr, 16));
      if (character > 0x10FFFF) source_.fail(begin, "illegal Unicode character");
      if (character >= 0xD800 && character < 0xE000)
        source_.fail(begin, "half of a surrogate pair is not supported", true);
      append_character(value, character);
      at_ += count;
    } else if (c == 'N') {
      source_.fail(begin, "characters by name, \\N, are not supported", true);
    } else if (c != '\n') {
      value += '\\';
      --at_;
      std::size_t end = at_;
      next_character(text_, end);
      value += text_.substr(at_, end - at_);
      at_ = end;
    }
  }

  Source& source_;
  std::string_view text_;
  std::size_t at_ = 0;
  std::size_t raw_begin_ = 0;
  bool starts_line_ = true;
  std::vector<Token> tokens_;
};

}  // namespace

Source::Source(std::string_view source, std::string_view of) : name(of) {
  for (std::size_t i = 0; i < source.size(); ++i) {
    if (source[i] == '\r' && i + 1 < source.size() && source[i + 1] == '\n') continue;
    text += source[i] == '\r' ? '\n' : source[i];
  }
  if (text.ends_with('\n')) text.pop_back();
  if (!is_valid_utf8(text))
    throw InvalidArgument(fmt::format("[chat template] {}: expected UTF-8", name));
}

void Source::fail(std::size_t at, std::string_view message, bool is_unsupported) const {
  const std::string_view before = std::string_view(text).substr(0, at);
  const std::size_t newline = before.rfind('\n');
  const std::size_t line_begin = newline == std::string_view::npos ? 0 : newline + 1;
  constexpr std::size_t kLongest = 1000;  // characters of a message that a template may have made
  message = message.substr(0, byte_of(message, kLongest));
  const std::string error = fmt::format("[chat template] {}: line {}, column {}: {}", name,
                                        std::count(before.begin(), before.end(), '\n') + 1,
                                        count_characters(before.substr(line_begin)) + 1, message);
  if (is_unsupported) throw Unsupported(error);
  throw InvalidArgument(error);
}

std::vector<Token> tokenize(Source& source) { return Lexer(source).run(); }

}  // namespace anabatic::io::jinja
