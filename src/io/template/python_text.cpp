// SPDX-License-Identifier: Apache-2.0
#include "io/template/python_text.h"

#include <fmt/core.h>
#include <utf8proc.h>

#include <charconv>
#include <cmath>
#include <unordered_map>

namespace anabatic::io::jinja {
namespace {

// Characters whose upper case is several characters, which utf8proc does not know; each is followed
// by those.
constexpr char kLongUpperCases[] =
    "\u00dfSS \u0149\u02bcN \u01f0J\u030c \u0390\u0399\u0308\u0301 \u03b0\u03a5\u0308\u0301 "
    "\u0587\u0535\u0552 \u1e96H\u0331 \u1e97T\u0308 \u1e98W\u030a \u1e99Y\u030a "
    "\u1e9aA\u02be \u1f50\u03a5\u0313 \u1f52\u03a5\u0313\u0300 \u1f54\u03a5\u0313\u0301 "
    "\u1f56\u03a5\u0313\u0342 \u1f80\u1f08\u0399 \u1f81\u1f09\u0399 \u1f82\u1f0a\u0399 "
    "\u1f83\u1f0b\u0399 \u1f84\u1f0c\u0399 \u1f85\u1f0d\u0399 \u1f86\u1f0e\u0399 "
    "\u1f87\u1f0f\u0399 \u1f88\u1f08\u0399 \u1f89\u1f09\u0399 \u1f8a\u1f0a\u0399 "
    "\u1f8b\u1f0b\u0399 \u1f8c\u1f0c\u0399 \u1f8d\u1f0d\u0399 \u1f8e\u1f0e\u0399 "
    "\u1f8f\u1f0f\u0399 \u1f90\u1f28\u0399 \u1f91\u1f29\u0399 \u1f92\u1f2a\u0399 "
    "\u1f93\u1f2b\u0399 \u1f94\u1f2c\u0399 \u1f95\u1f2d\u0399 \u1f96\u1f2e\u0399 "
    "\u1f97\u1f2f\u0399 \u1f98\u1f28\u0399 \u1f99\u1f29\u0399 \u1f9a\u1f2a\u0399 "
    "\u1f9b\u1f2b\u0399 \u1f9c\u1f2c\u0399 \u1f9d\u1f2d\u0399 \u1f9e\u1f2e\u0399 "
    "\u1f9f\u1f2f\u0399 \u1fa0\u1f68\u0399 \u1fa1\u1f69\u0399 \u1fa2\u1f6a\u0399 "
    "\u1fa3\u1f6b\u0399 \u1fa4\u1f6c\u0399 \u1fa5\u1f6d\u0399 \u1fa6\u1f6e\u0399 "
    "\u1fa7\u1f6f\u0399 \u1fa8\u1f68\u0399 \u1fa9\u1f69\u0399 \u1faa\u1f6a\u0399 "
    "\u1fab\u1f6b\u0399 \u1fac\u1f6c\u0399 \u1fad\u1f6d\u0399 \u1fae\u1f6e\u0399 "
    "\u1faf\u1f6f\u0399 \u1fb2\u1fba\u0399 \u1fb3\u0391\u0399 \u1fb4\u0386\u0399 "
    "\u1fb6\u0391\u0342 \u1fb7\u0391\u0342\u0399 \u1fbc\u0391\u0399 \u1fc2\u1fca\u0399 "
    "\u1fc3\u0397\u0399 \u1fc4\u0389\u0399 \u1fc6\u0397\u0342 \u1fc7\u0397\u0342\u0399 "
    "\u1fcc\u0397\u0399 \u1fd2\u0399\u0308\u0300 \u1fd3\u0399\u0308\u0301 \u1fd6\u0399\u0342 "
    "\u1fd7\u0399\u0308\u0342 \u1fe2\u03a5\u0308\u0300 \u1fe3\u03a5\u0308\u0301 "
    "\u1fe4\u03a1\u0313 \u1fe6\u03a5\u0342 \u1fe7\u03a5\u0308\u0342 \u1ff2\u1ffa\u0399 "
    "\u1ff3\u03a9\u0399 \u1ff4\u038f\u0399 \u1ff6\u03a9\u0342 \u1ff7\u03a9\u0342\u0399 "
    "\u1ffc\u03a9\u0399 \ufb00FF \ufb01FI \ufb02FL \ufb03FFI \ufb04FFL \ufb05ST \ufb06ST "
    "\ufb13\u0544\u0546 \ufb14\u0544\u0535 \ufb15\u0544\u053b \ufb16\u054e\u0546 "
    "\ufb17\u0544\u053d ";

const std::unordered_map<char32_t, std::u32string>& long_upper_cases() {
  static const auto* const table = [] {
    auto* made = new std::unordered_map<char32_t, std::u32string>;
    const std::string_view text = kLongUpperCases;
    for (std::size_t at = 0; at < text.size();) {
      std::u32string& upper = (*made)[next_character(text, at)];
      while (text[at] != ' ') upper += next_character(text, at);
      ++at;
    }
    return made;
  }();
  return *table;
}

utf8proc_category_t category_of(char32_t character) {
  return utf8proc_category(static_cast<utf8proc_int32_t>(character));
}
char32_t simple_case(char32_t character, Case wanted) {
  const auto c = static_cast<utf8proc_int32_t>(character);
  const auto map = wanted == Case::kLower   ? utf8proc_tolower
                   : wanted == Case::kUpper ? utf8proc_toupper
                                            : utf8proc_totitle;
  return static_cast<char32_t>(map(c));
}

// Characters that a final sigma does not see.
bool is_case_ignorable(char32_t character) {
  if (std::u32string_view(U"'.:^`\u00a8\u00ad\u00af\u00b4\u00b7\u00b8\u2018\u2019\u2024\u2027")
          .find(character) != std::u32string_view::npos)
    return true;
  const auto category = category_of(character);
  return category == UTF8PROC_CATEGORY_MN || category == UTF8PROC_CATEGORY_ME ||
         category == UTF8PROC_CATEGORY_CF || category == UTF8PROC_CATEGORY_LM ||
         category == UTF8PROC_CATEGORY_SK;
}

bool is_final_sigma(std::string_view text, std::size_t at) {
  bool follows_letter = false;
  for (std::size_t before = at; before > 0;) {
    before = character_before(text, before);
    std::size_t read = before;
    const char32_t character = next_character(text, read);
    if (is_case_ignorable(character)) continue;
    follows_letter = has_case(character);
    break;
  }
  next_character(text, at);
  while (follows_letter && at < text.size()) {
    const char32_t character = next_character(text, at);
    if (!is_case_ignorable(character)) return !has_case(character);
  }
  return follows_letter;
}

bool is_digit_of(char c, int base) {
  const int lower = c | 0x20;
  const int digit = c >= '0' && c <= '9'           ? c - '0'
                    : lower >= 'a' && lower <= 'z' ? lower - 'a' + 10
                                                   : 99;
  return digit < base;
}

// Without white space around it and without single underscores between digits; "" if they stand
// elsewhere.
std::string digits_of(std::string_view text) {
  const Stripped part = strip(text, std::nullopt, true, true);
  text = text.substr(part.begin, part.end - part.begin);
  std::string digits;
  for (std::size_t i = 0; i < text.size(); ++i) {
    if (text[i] != '_') {
      digits += text[i];
    } else if (i == 0 || i + 1 == text.size() || !is_digit_of(text[i - 1], 36) ||
               !is_digit_of(text[i + 1], 36)) {
      return "";
    }
  }
  return digits;
}

}  // namespace

char32_t next_character(std::string_view text, std::size_t& at) {
  const auto lead = static_cast<unsigned char>(text[at++]);
  if (lead < 0x80) return lead;
  int more = lead >= 0xF0 ? 3 : lead >= 0xE0 ? 2 : 1;
  char32_t character = lead & (0x3F >> more);
  for (; more > 0; --more) character = character << 6 | (text[at++] & 0x3F);
  return character;
}

std::size_t character_before(std::string_view text, std::size_t at) {
  do --at;
  while (at > 0 && (text[at] & 0xC0) == 0x80);
  return at;
}

void append_character(std::string& text, char32_t character) {
  if (character < 0x80) {
    text += static_cast<char>(character);
    return;
  }
  utf8proc_uint8_t bytes[4];
  const auto size = utf8proc_encode_char(static_cast<utf8proc_int32_t>(character), bytes);
  text.append(reinterpret_cast<const char*>(bytes), static_cast<std::size_t>(size));
}

bool is_valid_utf8(std::string_view text) {
  const auto* bytes = reinterpret_cast<const utf8proc_uint8_t*>(text.data());
  utf8proc_int32_t character;
  for (std::size_t at = 0; at < text.size();) {
    const auto size =
        utf8proc_iterate(bytes + at, static_cast<utf8proc_ssize_t>(text.size() - at), &character);
    if (size <= 0) return false;
    at += static_cast<std::size_t>(size);
  }
  return true;
}

bool is_space(char32_t c) {
  if (c < 0x80) return c == ' ' || (c >= 9 && c <= 13) || (c >= 0x1C && c <= 0x1F);
  return c == 0x85 || c == 0xA0 || c == 0x1680 || (c >= 0x2000 && c <= 0x200A) || c == 0x2028 ||
         c == 0x2029 || c == 0x202F || c == 0x205F || c == 0x3000;
}
bool is_line_end(char32_t c) {
  return (c >= 10 && c <= 13) || (c >= 0x1C && c <= 0x1E) || c == 0x85 || c == 0x2028 ||
         c == 0x2029;
}
bool is_letter(char32_t c) {
  const auto category = category_of(c);
  return category >= UTF8PROC_CATEGORY_LU && category <= UTF8PROC_CATEGORY_LO;
}
bool is_name_part(char32_t c) {
  if (c < 0x80) return c == '_' || is_digit_of(static_cast<char>(c), 36);
  const auto category = category_of(c);
  return is_letter(c) || category == UTF8PROC_CATEGORY_MN || category == UTF8PROC_CATEGORY_MC ||
         category == UTF8PROC_CATEGORY_ND || category == UTF8PROC_CATEGORY_NL;
}
bool is_printable(char32_t c) {
  if (c < 0x7F) return c >= 0x20;
  const auto category = category_of(c);
  return category != UTF8PROC_CATEGORY_CN && category < UTF8PROC_CATEGORY_ZS;
}
bool is_lower(char32_t c) {
  return category_of(c) == UTF8PROC_CATEGORY_LL || c == 0xAA || c == 0xBA ||
         (c > 0x7F && simple_case(c, Case::kUpper) != c && simple_case(c, Case::kLower) == c &&
          category_of(c) != UTF8PROC_CATEGORY_LT);
}
bool is_upper(char32_t c) {
  return category_of(c) == UTF8PROC_CATEGORY_LU ||
         (c > 0x7F && category_of(c) != UTF8PROC_CATEGORY_LT && simple_case(c, Case::kLower) != c);
}
bool has_case(char32_t c) {
  return is_lower(c) || is_upper(c) || category_of(c) == UTF8PROC_CATEGORY_LT;
}

std::size_t count_characters(std::string_view text) {
  std::size_t count = 0;
  for (const char c : text) count += (c & 0xC0) != 0x80;
  return count;
}

std::size_t byte_of(std::string_view text, std::size_t index) {
  std::size_t at = 0;
  for (; at < text.size(); ++at)
    if ((text[at] & 0xC0) != 0x80 && index-- == 0) break;
  return at;
}

void append_in_case(std::string& result, std::string_view text, std::size_t at, Case wanted) {
  const std::size_t begin = at;
  const char32_t character = next_character(text, at);
  if (character == 0x3A3 && wanted == Case::kLower) {
    append_character(result, is_final_sigma(text, begin) ? 0x3C2 : 0x3C3);
    return;
  }
  if (character == 0x130 && wanted == Case::kLower) {
    result += "i\u0307";
    return;
  }
  const char32_t simple = simple_case(character, wanted);
  if (wanted != Case::kLower && character > 0x7F) {
    const auto found = long_upper_cases().find(character);
    if (found != long_upper_cases().end() && (wanted == Case::kUpper || simple == character) &&
        !(wanted == Case::kTitle && category_of(character) == UTF8PROC_CATEGORY_LT)) {
      for (std::size_t i = 0; i < found->second.size(); ++i) {
        char32_t part = found->second[i];
        if (wanted == Case::kTitle && i > 0 && character != 0x149)
          part = part == 0x399 ? 0x345 : simple_case(part, Case::kLower);
        append_character(result, part);
      }
      return;
    }
  }
  append_character(result, simple);
}

Stripped strip(std::string_view text, std::optional<std::string_view> chars, bool left,
               bool right) {
  const auto goes = [&](std::size_t at) {
    std::size_t end = at;
    const char32_t character = next_character(text, end);
    if (!chars) return is_space(character);
    for (std::size_t i = 0; i < chars->size();)
      if (next_character(*chars, i) == character) return true;
    return false;
  };
  Stripped part{0, text.size()};
  while (left && part.begin < part.end && goes(part.begin)) next_character(text, part.begin);
  while (right && part.begin < part.end) {
    const std::size_t last = character_before(text, part.end);
    if (!goes(last)) break;
    part.end = last;
  }
  return part;
}

std::string repr_of_string(std::string_view text) {
  const bool has_single = text.find('\'') != std::string_view::npos;
  const char quote = has_single && text.find('"') == std::string_view::npos ? '"' : '\'';
  std::string result(1, quote);
  for (std::size_t at = 0; at < text.size();) {
    const std::size_t begin = at;
    const char32_t c = next_character(text, at);
    if (c == static_cast<char32_t>(quote) || c == '\\') {
      result += '\\';
      result += static_cast<char>(c);
    } else if (c == '\n' || c == '\r' || c == '\t') {
      result += c == '\n' ? "\\n" : c == '\r' ? "\\r" : "\\t";
    } else if (is_printable(c)) {
      result += text.substr(begin, at - begin);
    } else {
      result += c < 0x100     ? fmt::format("\\x{:02x}", static_cast<unsigned>(c))
                : c < 0x10000 ? fmt::format("\\u{:04x}", static_cast<unsigned>(c))
                              : fmt::format("\\U{:08x}", static_cast<unsigned>(c));
    }
  }
  return result + quote;
}

std::string repr_of_number(double number) {
  if (std::isnan(number)) return "nan";
  if (std::isinf(number)) return number < 0 ? "-inf" : "inf";
  char buffer[64];
  const auto end =
      std::to_chars(buffer, buffer + sizeof buffer, number, std::chars_format::scientific);
  const std::string_view shortest(buffer, static_cast<std::size_t>(end.ptr - buffer));
  const std::size_t e = shortest.find('e');
  int exponent = 0;
  std::from_chars(shortest.data() + e + 1 + (shortest[e + 1] == '+'), end.ptr, exponent);
  if (exponent < -4 || exponent >= 16) return std::string(shortest);
  const auto fixed =
      std::to_chars(buffer, buffer + sizeof buffer, number, std::chars_format::fixed);
  std::string result(buffer, fixed.ptr);
  if (result.find('.') == std::string::npos) result += ".0";
  return result;
}

void append_json_string(std::string& result, std::string_view text, bool ensure_ascii) {
  result += '"';
  for (std::size_t at = 0; at < text.size();) {
    const std::size_t begin = at;
    const char32_t c = next_character(text, at);
    const std::size_t special = std::string_view("\"\\\n\r\t\f\b").find(static_cast<char>(c));
    if (c < 0x80 && special != std::string_view::npos) {
      result += '\\';
      result += "\"\\nrtfb"[special];
    } else if (c >= 0x10000 && ensure_ascii) {
      const unsigned high = (static_cast<unsigned>(c) - 0x10000) >> 10, low = c & 0x3FF;
      result += fmt::format("\\u{:04x}\\u{:04x}", 0xD800 + high, 0xDC00 + low);
    } else if (c < 0x20 || (c > 0x7E && ensure_ascii)) {
      result += fmt::format("\\u{:04x}", static_cast<unsigned>(c));
    } else {
      result += text.substr(begin, at - begin);
    }
  }
  result += '"';
}

std::optional<double> parse_number(std::string_view text) {
  std::string digits = digits_of(text);
  std::string_view rest = digits;
  const bool is_negative = rest.starts_with('-');
  if (is_negative || rest.starts_with('+')) rest.remove_prefix(1);
  if (rest.empty() || rest[0] == '-' || rest[0] == '+') return std::nullopt;
  double number = 0;
  const auto [end, error] = std::from_chars(rest.data(), rest.data() + rest.size(), number);
  if (end != rest.data() + rest.size() || error == std::errc::invalid_argument ||
      rest.back() == ')')
    return std::nullopt;
  if (error == std::errc::result_out_of_range)
    number = std::strtod(std::string(rest).c_str(), nullptr);
  return is_negative ? -number : number;
}

std::optional<std::int64_t> parse_integer(std::string_view text, int base) {
  std::string digits = digits_of(text);
  std::string_view rest = digits;
  const bool is_negative = rest.starts_with('-');
  if (is_negative || rest.starts_with('+')) rest.remove_prefix(1);
  if (rest.size() > 1 && rest[0] == '0') {
    const char letter = static_cast<char>(rest[1] | 0x20);
    const int named = letter == 'x' ? 16 : letter == 'o' ? 8 : letter == 'b' ? 2 : 0;
    if (named != 0 && (base == 0 || base == named)) {
      rest.remove_prefix(2);
      base = named;
    } else if (base == 0 && rest.find_first_not_of('0') != std::string_view::npos) {
      return std::nullopt;
    }
  }
  if (base == 0) base = 10;
  if (rest.empty() || !is_digit_of(rest[0], base)) return std::nullopt;
  std::int64_t number = 0;
  const auto [end, error] = std::from_chars(rest.data(), rest.data() + rest.size(), number, base);
  if (end != rest.data() + rest.size() || error != std::errc()) return std::nullopt;
  return is_negative ? -number : number;
}

}  // namespace anabatic::io::jinja
