// SPDX-License-Identifier: Apache-2.0
// Text as Python's str sees it: characters, white space, case, repr, numbers in text.
#pragma once
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

namespace anabatic::io::jinja {

// The character at `at` of valid UTF-8; moves `at` past it.
char32_t next_character(std::string_view text, std::size_t& at);
// The start of the character that ends before `at`, which is above 0.
std::size_t character_before(std::string_view text, std::size_t at);
void append_character(std::string& text, char32_t character);
bool is_valid_utf8(std::string_view text);

bool is_space(char32_t character);
bool is_line_end(char32_t character);  // of splitlines
bool is_name_part(char32_t character);
bool is_printable(char32_t character);
bool is_letter(char32_t character);
bool is_lower(char32_t character);
bool is_upper(char32_t character);
bool has_case(char32_t character);

std::size_t count_characters(std::string_view text);
// The byte where character `index` begins; the size of the text if it has no more.
std::size_t byte_of(std::string_view text, std::size_t index);

enum class Case { kLower, kUpper, kTitle };
// Appends what the character at `at` becomes; `at` tells a final sigma.
void append_in_case(std::string& result, std::string_view text, std::size_t at, Case wanted);

// Bytes [begin, end) that are left when `chars`, or white space, go from the ends.
struct Stripped {
  std::size_t begin, end;
};
Stripped strip(std::string_view text, std::optional<std::string_view> chars, bool left, bool right);

std::string repr_of_string(std::string_view text);
std::string repr_of_number(double number);
void append_json_string(std::string& result, std::string_view text, bool ensure_ascii);

std::optional<double> parse_number(std::string_view text);                   // float(text)
std::optional<std::int64_t> parse_integer(std::string_view text, int base);  // int(text, base)

}  // namespace anabatic::io::jinja
