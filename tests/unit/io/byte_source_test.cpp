// SPDX-License-Identifier: Apache-2.0
#include "io/byte_source.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "anabatic/error.h"
#include "unit/io/test_files.h"

namespace anabatic::io {
namespace {

using ::testing::HasSubstr;

std::string read_all(const std::filesystem::path& path, std::size_t step) {
  ByteSource source(path);
  std::string all;
  std::string part(step, '\0');
  while (const std::size_t count = source.read(std::as_writable_bytes(std::span(part)))) {
    all.append(part, 0, count);
    if (count < step) break;
  }
  return all;
}

std::string long_text() {
  std::string text;
  for (int i = 0; text.size() < (std::size_t{3} << 20); ++i)
    text += std::to_string(i * 7919) + "\n";
  return text;
}

TEST(ByteSource, GivesPlainFilesAsTheyAre) {
  const TempDirectory directory;
  const std::string text = long_text();
  write_text(directory / "a", text);
  for (const std::size_t step : {std::size_t{777}, std::size_t{1} << 20, text.size() + 1})
    EXPECT_TRUE(read_all(directory / "a", step) == text) << step;
  write_text(directory / "a", "");
  EXPECT_EQ(read_all(directory / "a", 10), "");
}

TEST(ByteSource, DecompressesMembersOneAfterTheOther) {
  const TempDirectory directory;
  const std::string text = long_text();
  const std::string members = gzipped(text) + gzipped("") + gzipped("end");
  for (const std::string& padding : {std::string(), std::string(700'000, '\0')}) {
    write_text(directory / "a.gz", members + padding);
    for (const std::size_t step : {std::size_t{777}, std::size_t{1} << 20, text.size() + 4})
      EXPECT_TRUE(read_all(directory / "a.gz", step) == text + "end") << step;
  }
}

TEST(ByteSource, NamesWhereCompressedDataAreWrong) {
  const TempDirectory directory;
  const std::string whole = gzipped(long_text());
  const auto error = [&](const std::string& content) {
    write_text(directory / "a.gz", content);
    return error_of([&] { read_all(directory / "a.gz", 1 << 16); });
  };
  for (const std::size_t size :
       {std::size_t{5}, std::size_t{11}, whole.size() / 2, whole.size() - 1})
    EXPECT_THAT(error(whole.substr(0, size)),
                HasSubstr("a.gz: expected more compressed data, got the end of the file at byte " +
                          std::to_string(size)));
  std::string flipped = whole;
  flipped[whole.size() / 2] ^= 0x10;
  EXPECT_THAT(error(flipped), HasSubstr("a.gz: expected gzip data, got damaged ones at byte"));
  flipped = whole;
  flipped[whole.size() - 6] ^= 1;  // of the checksum
  EXPECT_THAT(error(flipped), HasSubstr("(incorrect data check)"));
  EXPECT_THAT(error(whole + "tail"), HasSubstr("(incorrect header check)"));
}

}  // namespace
}  // namespace anabatic::io
