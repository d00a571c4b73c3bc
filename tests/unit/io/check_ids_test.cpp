// SPDX-License-Identifier: Apache-2.0
#include "io/data/check_ids.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <array>

#include "anabatic/error.h"
#include "unit/io/test_files.h"

namespace anabatic::io {
namespace {

namespace fs = std::filesystem;
using ::testing::HasSubstr;

std::vector<TokenFile> files_of(const std::vector<fs::path>& prefixes) {
  std::vector<TokenFile> files;
  for (const fs::path& prefix : prefixes) files.push_back({{.path = prefix}, IndexedFile(prefix)});
  return files;
}

TEST(CheckIds, NamesFileDocumentAndPlaceOfEveryType) {
  const TempDirectory directory;
  for (const TokenType type : {TokenType::kUint8, TokenType::kInt8, TokenType::kInt16,
                               TokenType::kUint16, TokenType::kInt32, TokenType::kInt64}) {
    write_documents(directory / "a", {{1, 2}, {}, {3, 99, 100, 5}}, type);
    EXPECT_EQ(check_ids(files_of({directory / "a"}), 101, 2, nullptr), 1);
    EXPECT_THAT(error_of([&] { check_ids(files_of({directory / "a"}), 100, 2, nullptr); }),
                HasSubstr("a, document 2, token 2: expected an id in [0, 100) (the model's "
                          "vocabulary), got 100"));
    if (type == TokenType::kUint8 || type == TokenType::kUint16) continue;
    write_documents(directory / "a", {{1}, {2, -1}}, type);
    EXPECT_THAT(error_of([&] { check_ids(files_of({directory / "a"}), 100, 2, nullptr); }),
                HasSubstr("document 1, token 1: expected an id in [0, 100) (the model's "
                          "vocabulary), got -1"));
  }
}

TEST(CheckIds, FindsOneIdInMany) {
  const TempDirectory directory;
  for (const std::size_t place : {std::size_t{0}, std::size_t{262143}, std::size_t{262144},
                                  std::size_t{600'000}, std::size_t{699'999}}) {
    std::vector<std::int32_t> ids(700'000, 7);
    ids[place] = 70'000;
    write_documents(directory / "a", {ids}, TokenType::kInt32);
    for (const int threads : {1, 3})
      EXPECT_THAT(
          error_of([&] { check_ids(files_of({directory / "a"}), 70'000, threads, nullptr); }),
          HasSubstr("document 0, token " + std::to_string(place) + ": "));
    EXPECT_EQ(check_ids(files_of({directory / "a"}), 70'001, 2, nullptr), 1);
  }
}

TEST(CheckIds, NamesTheFirstFile) {
  const TempDirectory directory;
  write_documents(directory / "a", {{1, 2}});
  write_documents(directory / "b", {{1, 200}});
  write_documents(directory / "c", {{300, 2}});
  write_documents(directory / "none", {});
  const auto files =
      files_of({directory / "none", directory / "a", directory / "b", directory / "c"});
  EXPECT_THAT(error_of([&] { check_ids(files, 100, 3, nullptr); }), HasSubstr("b, document 0"));
  EXPECT_EQ(check_ids(files, 301, 3, nullptr), 4);
}

TEST(CheckIds, DoesNotReadWhatCannotBeWrong) {
  const TempDirectory directory;
  write_documents(directory / "a", {{1, 65499}});
  EXPECT_EQ(check_ids(files_of({directory / "a"}), 65536, 2, nullptr), 0);
  std::vector<TokenFile> files = files_of({directory / "a"});
  files[0].ids = IdRange{1, 65499};
  EXPECT_EQ(check_ids(files, 65500, 2, nullptr), 0);
  EXPECT_THAT(error_of([&] { check_ids(files, 65499, 2, nullptr); }), HasSubstr("got 65499"));
}

TEST(CheckIds, KeepsWhatItReadOfALargeFile) {
  const TempDirectory directory;
  const TempDirectory cache;
  const auto check = [&](std::int64_t vocab_size) {
    return check_ids(files_of({directory / "a"}), vocab_size, 2, [&] { return cache.path(); });
  };
  std::vector<std::int32_t> ids(1'500'000, 7);
  ids[9] = 50;
  write_documents(directory / "a", {ids}, TokenType::kInt32);
  EXPECT_EQ(check(100), 1);
  EXPECT_EQ(check(100), 0);
  EXPECT_THAT(error_of([&] { check(50); }), HasSubstr("document 0, token 9: "))
      << "the range is kept, not the verdict";
  // Another content, of equal size and time of change.
  const auto time = fs::last_write_time(directory / "a.bin");
  ids[1'000'000] = 200;
  write_documents(directory / "a", {ids}, TokenType::kInt32);
  fs::last_write_time(directory / "a.bin", time);
  EXPECT_THAT(error_of([&] { check(100); }), HasSubstr("token 1000000: "));
  EXPECT_EQ(check(201), 0);
  // What is kept is not believed when it was altered.
  for (const auto& entry : fs::directory_iterator(cache.path())) {
    std::string text = read_text(entry.path());
    text.replace(text.find("7 "), 2, "8 ");
    write_text(entry.path(), text);
  }
  EXPECT_EQ(check(201), 1);
  EXPECT_EQ(check(201), 0);
}

}  // namespace
}  // namespace anabatic::io
