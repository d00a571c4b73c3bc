// SPDX-License-Identifier: Apache-2.0
// UTF-8 and character classes as the Rust standard library sees them, and the byte-level alphabet.
#pragma once
#include <cstddef>
#include <optional>
#include <string>
#include <string_view>

namespace anabatic::io::tokenizer {

// Bytes of the character that starts with `lead`; 1 for a byte that starts none.
std::size_t utf8_length(unsigned char lead);

// The character at `at` of valid UTF-8; sets `length` to its bytes.
char32_t decode_utf8(std::string_view text, std::size_t at, std::size_t& length);

// The start of the character that ends before `at` (> 0) of valid UTF-8.
std::size_t previous_character(std::string_view text, std::size_t at);

void append_utf8(std::string& text, char32_t character);

// Exactly one character.
bool is_one_character(std::string_view text);

bool is_whitespace(char32_t character);   // property White_Space
bool is_numeric(char32_t character);      // categories Nd, Nl, No
bool is_punctuation(char32_t character);  // ASCII punctuation or category P

// Ill-formed parts become U+FFFD, one for each maximal subpart.
std::string replace_invalid_utf8(std::string_view bytes);

// The byte-level alphabet of GPT-2: every byte has a printable character; the 188 printable bytes
// of Latin-1 stand for themselves, the others are U+0100, U+0101, ... in order.
char32_t byte_symbol(unsigned char byte);
std::optional<unsigned char> symbol_byte(char32_t symbol);
void append_byte_symbols(std::string_view bytes, std::string& text);

}  // namespace anabatic::io::tokenizer
