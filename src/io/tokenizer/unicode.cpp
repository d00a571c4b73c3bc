// SPDX-License-Identifier: Apache-2.0
#include "io/tokenizer/unicode.h"

#include <utf8proc.h>

#include <array>
#include <cstdint>
#include <cstring>

#include "io/tokenizer/tokenizer.h"
#include "io/tokenizer/unicode_versions.h"

namespace anabatic::io {
namespace tokenizer {
namespace {

// The length of the well-formed character at `at`, or 0; `bad` then gets the length of the maximal
// subpart (Unicode 15, table 3-7).
std::size_t well_formed_length(std::string_view text, std::size_t at, std::size_t& bad) {
  const auto byte = [&](std::size_t i) {
    return at + i < text.size() ? static_cast<unsigned char>(text[at + i]) : 0u;
  };
  const unsigned lead = byte(0);
  bad = 1;
  if (lead < 0x80) return 1;
  if (lead < 0xC2 || lead > 0xF4) return 0;
  const std::size_t length = lead < 0xE0 ? 2 : lead < 0xF0 ? 3 : 4;
  unsigned low = 0x80, high = 0xBF;
  if (lead == 0xE0) low = 0xA0;
  if (lead == 0xED) high = 0x9F;
  if (lead == 0xF0) low = 0x90;
  if (lead == 0xF4) high = 0x8F;
  for (std::size_t i = 1; i < length; ++i) {
    if (byte(i) < low || byte(i) > high) {
      bad = i;
      return 0;
    }
    low = 0x80;
    high = 0xBF;
  }
  return length;
}

struct ByteAlphabet {
  std::array<char32_t, 256> symbol{};
  std::array<std::int16_t, 512> byte{};
  ByteAlphabet() {
    byte.fill(-1);
    char32_t next = 256;
    for (unsigned b = 0; b < 256; ++b) {
      const bool printable =
          (b >= 0x21 && b <= 0x7E) || (b >= 0xA1 && b <= 0xAC) || (b >= 0xAE && b <= 0xFF);
      symbol[b] = printable ? b : next++;
      byte[symbol[b]] = static_cast<std::int16_t>(b);
    }
  }
};

const ByteAlphabet& alphabet() {
  static const ByteAlphabet kAlphabet;
  return kAlphabet;
}

}  // namespace

std::size_t utf8_length(unsigned char lead) {
  return lead < 0xC0 ? 1 : lead < 0xE0 ? 2 : lead < 0xF0 ? 3 : 4;
}

char32_t decode_utf8(std::string_view text, std::size_t at, std::size_t& length) {
  const auto byte = [&](std::size_t i) {
    return static_cast<char32_t>(static_cast<unsigned char>(text[at + i]));
  };
  length = utf8_length(static_cast<unsigned char>(text[at]));
  switch (length) {
    case 1:
      return byte(0);
    case 2:
      return (byte(0) & 0x1F) << 6 | (byte(1) & 0x3F);
    case 3:
      return (byte(0) & 0x0F) << 12 | (byte(1) & 0x3F) << 6 | (byte(2) & 0x3F);
    default:
      return (byte(0) & 0x07) << 18 | (byte(1) & 0x3F) << 12 | (byte(2) & 0x3F) << 6 |
             (byte(3) & 0x3F);
  }
}

std::size_t previous_character(std::string_view text, std::size_t at) {
  --at;
  while (at > 0 && (static_cast<unsigned char>(text[at]) & 0xC0) == 0x80) --at;
  return at;
}

void append_utf8(std::string& text, char32_t c) {
  const auto put = [&](char32_t byte) { text.push_back(static_cast<char>(byte)); };
  if (c < 0x80) {
    put(c);
  } else if (c < 0x800) {
    put(0xC0 | c >> 6);
    put(0x80 | (c & 0x3F));
  } else if (c < 0x10000) {
    put(0xE0 | c >> 12);
    put(0x80 | (c >> 6 & 0x3F));
    put(0x80 | (c & 0x3F));
  } else {
    put(0xF0 | c >> 18);
    put(0x80 | (c >> 12 & 0x3F));
    put(0x80 | (c >> 6 & 0x3F));
    put(0x80 | (c & 0x3F));
  }
}

bool is_one_character(std::string_view text) {
  return !text.empty() && utf8_length(static_cast<unsigned char>(text[0])) == text.size();
}

bool is_whitespace(char32_t c) {
  return (c >= 9 && c <= 13) || c == 0x20 || c == 0x85 || c == 0xA0 || c == 0x1680 ||
         (c >= 0x2000 && c <= 0x200A) || c == 0x2028 || c == 0x2029 || c == 0x202F || c == 0x205F ||
         c == 0x3000;
}

bool is_numeric(char32_t c) {
  if (c < 0x80) return c >= '0' && c <= '9';
  const auto category = utf8proc_category(static_cast<utf8proc_int32_t>(c));
  return category == UTF8PROC_CATEGORY_ND || category == UTF8PROC_CATEGORY_NL ||
         category == UTF8PROC_CATEGORY_NO || is_new_number(c);
}

bool is_punctuation(char32_t c) {
  if (c < 0x80) {
    return (c >= '!' && c <= '/') || (c >= ':' && c <= '@') || (c >= '[' && c <= '`') ||
           (c >= '{' && c <= '~');
  }
  if (c == 0x166D || c == 0x111C9) return true;  // until Unicode 10
  const auto category = utf8proc_category(static_cast<utf8proc_int32_t>(c));
  return category >= UTF8PROC_CATEGORY_PC && category <= UTF8PROC_CATEGORY_PO &&
         !is_unknown_punctuation(c);
}

std::string replace_invalid_utf8(std::string_view bytes) {
  if (!find_invalid_utf8(bytes)) return std::string(bytes);
  std::string text;
  text.reserve(bytes.size() + 16);
  for (std::size_t at = 0; at < bytes.size();) {
    std::size_t bad = 0;
    const std::size_t length = well_formed_length(bytes, at, bad);
    if (length > 0) {
      text.append(bytes.substr(at, length));
      at += length;
    } else {
      text.append("\xEF\xBF\xBD");
      at += bad;
    }
  }
  return text;
}

char32_t byte_symbol(unsigned char byte) { return alphabet().symbol[byte]; }

std::optional<unsigned char> symbol_byte(char32_t symbol) {
  if (symbol >= 512 || alphabet().byte[symbol] < 0) return std::nullopt;
  return static_cast<unsigned char>(alphabet().byte[symbol]);
}

void append_byte_symbols(std::string_view bytes, std::string& text) {
  for (const char byte : bytes) append_utf8(text, byte_symbol(static_cast<unsigned char>(byte)));
}

}  // namespace tokenizer

std::optional<std::size_t> find_invalid_utf8(std::string_view text) {
  std::size_t at = 0;
  while (at < text.size()) {
    while (at + 8 <= text.size()) {
      std::uint64_t word;
      std::memcpy(&word, text.data() + at, 8);
      if ((word & 0x8080808080808080u) != 0) break;
      at += 8;
    }
    if (at >= text.size()) break;
    std::size_t bad = 0;
    const std::size_t length = tokenizer::well_formed_length(text, at, bad);
    if (length == 0) return at;
    at += length;
  }
  return std::nullopt;
}

}  // namespace anabatic::io
