// SPDX-License-Identifier: Apache-2.0
#include "io/tokenizer/unicode.h"

#include <gtest/gtest.h>

#include "io/tokenizer/tokenizer.h"

namespace anabatic::io {
namespace {

using namespace tokenizer;

TEST(Utf8, FindsTheFirstIllFormedByte) {
  EXPECT_EQ(find_invalid_utf8(""), std::nullopt);
  EXPECT_EQ(find_invalid_utf8("plain ASCII, long enough for words of eight bytes é 中 😀"),
            std::nullopt);
  EXPECT_EQ(find_invalid_utf8("0123456789\xFF"), 10u);
  EXPECT_EQ(find_invalid_utf8("ab\xC0\x80"), 2u);          // overlong
  EXPECT_EQ(find_invalid_utf8("ab\xED\xA0\x80"), 2u);      // surrogate
  EXPECT_EQ(find_invalid_utf8("ab\xF4\x90\x80\x80"), 2u);  // beyond U+10FFFF
  EXPECT_EQ(find_invalid_utf8("01234567\xE4\xB8"), 8u);    // cut short
  EXPECT_EQ(find_invalid_utf8("\x80"), 0u);                // a lone continuation
}

TEST(Utf8, ReplacesMaximalSubparts) {
  EXPECT_EQ(replace_invalid_utf8("a\xE4\xB8z"), "a\uFFFDz");
  EXPECT_EQ(replace_invalid_utf8("\xF0\x9F\x98"), "\uFFFD");
  EXPECT_EQ(replace_invalid_utf8("\xED\xA0\x80"), "\uFFFD\uFFFD\uFFFD");
  EXPECT_EQ(replace_invalid_utf8("é\xFFé"), "é\uFFFDé");
}

TEST(Utf8, EncodesWhatItDecodes) {
  for (const char32_t c :
       {U'\0', U'a', U'\u00e9', U'\u07ff', U'\u0800', U'\uffff', U'\U0010ffff'}) {
    std::string text = "x";
    append_utf8(text, c);
    std::size_t length = 0;
    EXPECT_EQ(decode_utf8(text, 1, length), c);
    EXPECT_EQ(1 + length, text.size());
    EXPECT_EQ(previous_character(text, text.size()), 1u);
  }
}

TEST(ByteSymbols, AreOneToOne) {
  for (int byte = 0; byte < 256; ++byte) {
    const char32_t symbol = byte_symbol(static_cast<unsigned char>(byte));
    EXPECT_EQ(symbol_byte(symbol), static_cast<unsigned char>(byte));
  }
  EXPECT_EQ(byte_symbol(' '), U'\u0120');
  EXPECT_EQ(byte_symbol('\n'), U'\u010A');
  EXPECT_EQ(symbol_byte(U' '), std::nullopt);
}

}  // namespace
}  // namespace anabatic::io
