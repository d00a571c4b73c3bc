// SPDX-License-Identifier: Apache-2.0
#include "io/data/chunks.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "anabatic/error.h"
#include "io/data/json_values.h"
#include "unit/io/test_files.h"

namespace anabatic::io {
namespace {

constexpr std::size_t kMiB = std::size_t{1} << 20;

// Cuts text that begins at a mark less 8 bytes.
std::optional<std::size_t> cut(const std::string& text, bool at_end = true) {
  return next_chunk(text, kChunkBytes - 8, at_end);
}

TEST(Chunks, CutAfterANewlineBetweenNonSpaceAndLetter) {
  EXPECT_EQ(cut("12345678ab\ncd"), 11u);
  EXPECT_EQ(cut("12345678ab\n7d"), 11u);
  EXPECT_EQ(cut("12345678ab\n\xE4\xB8\xADx"), 11u);           // a Chinese character
  EXPECT_EQ(cut("12345678\xE3\x80\x82\n\xE4\xB8\xAD"), 12u);  // after an ideographic full stop
}

TEST(Chunks, DoNotCutWhereARegexLooksAhead) {
  const std::string before = "12345678";
  for (const std::string& text : {before + "ab\n\ncd", before + "ab \ncd", before + "ab\r\ncd",
                                  before + "ab\n cd", before + "ab\n-cd",
                                  before + "ab\n\xC2\xA0"
                                           "cd",
                                  before + "ab\xE3\x80\x80\ncd",
                                  before + "ab\n\xFF"
                                           "cd",
                                  before + "ab\xFF\ncd", before + "ab\n"}) {
    EXPECT_EQ(cut(text), text.size()) << text;
  }
}

TEST(Chunks, DoNotCutBeforeTheMark) {
  EXPECT_EQ(cut("ab\ncdefghijk"), 12u);
  EXPECT_EQ(cut("a234567\nb"), 8u) << "a place on the mark itself counts";
  EXPECT_EQ(cut("a23456\nbc"), 9u);
}

TEST(Chunks, WaitForFourMoreBytesUnlessAtTheEnd) {
  EXPECT_EQ(cut("12345678ab\ncd", false), std::nullopt);
  EXPECT_EQ(cut("12345678ab\ncdef", false), std::nullopt);
  EXPECT_EQ(cut("12345678ab\ncdefg", false), 11u);
}

TEST(Chunks, FallBackOnNewlinesAndThenOnCodePoints) {
  std::string text(20 * kMiB, ' ');
  text[3 * kMiB] = '\n';
  EXPECT_EQ(next_chunk(text, 0, false), 3 * kMiB + 1);
  std::string letters;
  while (letters.size() < 18 * kMiB) letters += "\xE4\xB8\xAD";
  const std::optional<std::size_t> length = next_chunk(letters, 0, false);
  ASSERT_TRUE(length.has_value());
  EXPECT_EQ(*length, 16 * kMiB - 16 * kMiB % 3);
}

std::string make_text(std::size_t size) {
  std::string text;
  for (std::uint32_t i = 0; text.size() < size; ++i) {
    text += "word" + std::to_string(i * 2654435761u) +
            (i % 7 == 0    ? "\n"
             : i % 11 == 0 ? " \n\n"
                           : " ");
  }
  return text;
}

TEST(TextChunkReader, GivesTheChunksOfTheWholeText) {
  const TempDirectory directory;
  const std::string text = make_text(5 * kMiB + 12345);
  write_text(directory / "a.txt", text);
  TextChunkReader reader(directory / "a.txt");
  std::string chunk;
  std::size_t offset = 0;
  int chunks = 0;
  EXPECT_TRUE(reader.at_begin());
  while (reader.next(chunk)) {
    const std::string_view rest = std::string_view(text).substr(offset);
    ASSERT_EQ(chunk.size(), next_chunk(rest, static_cast<std::int64_t>(offset), true));
    ASSERT_EQ(chunk, rest.substr(0, chunk.size()));
    offset += chunk.size();
    EXPECT_EQ(reader.at_end(), offset == text.size());
    ++chunks;
  }
  EXPECT_EQ(offset, text.size());
  EXPECT_EQ(chunks, 6);
}

TEST(TextChunkReader, GivesOneEmptyChunkForAnEmptyFile) {
  const TempDirectory directory;
  write_text(directory / "a.txt", "");
  TextChunkReader reader(directory / "a.txt");
  std::string chunk = "x";
  EXPECT_TRUE(reader.next(chunk));
  EXPECT_EQ(chunk, "");
  EXPECT_FALSE(reader.next(chunk));
}

TEST(LineReader, GivesLinesAcrossBufferBounds) {
  const TempDirectory directory;
  const std::string longest(3 * kMiB + 5, 'x');
  write_text(directory / "a", "one\r\n\n" + longest + "\nlast");
  LineReader reader(directory / "a", std::int64_t{4} << 20);
  std::string_view line;
  std::vector<std::string> lines;
  while (reader.next(line)) lines.emplace_back(line);
  EXPECT_EQ(lines, (std::vector<std::string>{"one", "", longest, "last"}));
  EXPECT_EQ(reader.line_number(), 4);
}

TEST(LineReader, NamesALineThatIsTooLong) {
  const TempDirectory directory;
  write_text(directory / "a", "one\n" + std::string(5 * kMiB, 'x') + "\n");
  LineReader reader(directory / "a", std::int64_t{1} << 20);
  std::string_view line;
  EXPECT_TRUE(reader.next(line));
  EXPECT_THAT(error_of([&] { reader.next(line); }), ::testing::HasSubstr("a:2: expected a line"));
}

}  // namespace
}  // namespace anabatic::io
