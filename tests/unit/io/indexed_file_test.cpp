// SPDX-License-Identifier: Apache-2.0
#include "io/data/indexed_file.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "anabatic/error.h"
#include "unit/io/test_files.h"

namespace anabatic::io {
namespace {

using ::testing::HasSubstr;

std::string golden(std::initializer_list<int> bytes) {
  std::string text;
  for (const int byte : bytes) text.push_back(static_cast<char>(byte));
  return text;
}

// clang-format off
// Documents {1, 2, 258}, {}, {65499} as Megatron's IndexedDatasetBuilder writes them.
const std::string kGoldenBin = golden({1, 0, 2, 0, 2, 1, 0xDB, 0xFF});
const std::string kGoldenIdx = golden({
    'M', 'M', 'I', 'D', 'I', 'D', 'X', 0, 0,
    1, 0, 0, 0, 0, 0, 0, 0,
    8,
    3, 0, 0, 0, 0, 0, 0, 0,
    4, 0, 0, 0, 0, 0, 0, 0,
    3, 0, 0, 0,  0, 0, 0, 0,  1, 0, 0, 0,
    0, 0, 0, 0, 0, 0, 0, 0,  6, 0, 0, 0, 0, 0, 0, 0,  6, 0, 0, 0, 0, 0, 0, 0,
    0, 0, 0, 0, 0, 0, 0, 0,  1, 0, 0, 0, 0, 0, 0, 0,  2, 0, 0, 0, 0, 0, 0, 0,  3, 0, 0, 0, 0, 0, 0, 0});
// clang-format on

TEST(IndexedFileWriter, WritesMegatronsBytes) {
  const TempDirectory directory;
  write_documents(directory / "a", {{1, 2, 258}, {}, {65499}});
  EXPECT_EQ(read_text(directory / "a.bin"), kGoldenBin);
  EXPECT_EQ(read_text(directory / "a.idx"), kGoldenIdx);
  EXPECT_FALSE(std::filesystem::exists(directory / "a.bin.partial"));
}

TEST(IndexedFileWriter, WritesInt32FromVocabulary65500On) {
  EXPECT_EQ(token_type_for(65499), TokenType::kUint16);
  EXPECT_EQ(token_type_for(65500), TokenType::kInt32);
  const TempDirectory directory;
  write_documents(directory / "a", {{70000}}, TokenType::kInt32);
  EXPECT_EQ(read_text(directory / "a.bin"), golden({0x70, 0x11, 1, 0}));
}

TEST(IndexedFileWriter, RefusesIdsThatDoNotFit) {
  const TempDirectory directory;
  EXPECT_THROW(write_documents(directory / "a", {{65536}}), InvalidArgument);
  EXPECT_THROW(write_documents(directory / "a", {{-1}}), InvalidArgument);
  EXPECT_TRUE(std::filesystem::is_empty(directory.path()));
}

TEST(IndexedFile, ReadsTokensAndFindsDocuments) {
  const TempDirectory directory;
  const IndexedFile file = write_documents(directory / "a", {{}, {1, 2, 258}, {}, {}, {65499}, {}});
  EXPECT_EQ(file.num_documents(), 6);
  EXPECT_EQ(file.num_tokens(), 4);
  std::vector<std::int64_t> ids(3);
  std::vector<std::byte> scratch(24);
  file.read(1, ids, scratch);
  EXPECT_EQ(ids, (std::vector<std::int64_t>{2, 258, 65499}));
  const std::vector<std::int64_t> begins = {0, 0, 3, 3, 3, 4, 4};
  for (std::int64_t d = 0; d <= 6; ++d) {
    EXPECT_EQ(file.document_begin(d), begins[static_cast<std::size_t>(d)]);
  }
  EXPECT_EQ(file.document_of(0), 1);
  EXPECT_EQ(file.document_of(2), 1);
  EXPECT_EQ(file.document_of(3), 4);
  EXPECT_THROW(file.document_of(4), InvalidArgument);
}

TEST(IndexedFile, ReadsEveryTokenTypeWithItsSign) {
  const TempDirectory directory;
  for (const TokenType type : {TokenType::kInt8, TokenType::kInt16, TokenType::kInt32,
                               TokenType::kInt64, TokenType::kUint8, TokenType::kUint16}) {
    const bool is_signed = type != TokenType::kUint8 && type != TokenType::kUint16;
    const std::int32_t id = is_signed ? -7 : 200;
    const IndexedFile file = write_documents(directory / "a", {{5, id}}, type);
    std::vector<std::int64_t> ids(2);
    std::vector<std::byte> scratch(16);
    file.read(0, ids, scratch);
    EXPECT_EQ(ids, (std::vector<std::int64_t>{5, id})) << static_cast<int>(type);
  }
}

TEST(IndexedFile, CountsSequencesWithoutDocumentEndsAsDocuments) {
  const TempDirectory directory;
  write_text(directory / "a.bin", kGoldenBin);
  std::string index = kGoldenIdx.substr(0, kGoldenIdx.size() - 24);
  index[26] = 1;
  write_text(directory / "a.idx", index);
  const IndexedFile file(directory / "a");
  EXPECT_EQ(file.num_documents(), 3);
  EXPECT_EQ(file.document_begin(2), 3);
}

TEST(IndexedFile, JoinsTheSequencesOfADocument) {
  const TempDirectory directory;
  write_text(directory / "a.bin", kGoldenBin);
  std::string index = kGoldenIdx.substr(0, kGoldenIdx.size() - 8);
  index[26] = 3;  // document indices 0, 1, 2 become 0, 2, 3
  index[index.size() - 16] = 2;
  index[index.size() - 8] = 3;
  write_text(directory / "a.idx", index);
  const IndexedFile file(directory / "a");
  EXPECT_EQ(file.num_documents(), 2);
  EXPECT_EQ(file.document_begin(1), 3);
}

std::string open_error(std::string index, const std::string& bin = kGoldenBin) {
  const TempDirectory directory;
  write_text(directory / "a.bin", bin);
  write_text(directory / "a.idx", index);
  return error_of([&] { IndexedFile file(directory / "a"); });
}

std::string with_byte(std::string text, std::size_t place, int value) {
  text[place] = static_cast<char>(value);
  return text;
}

TEST(IndexedFile, NamesWhatIsWrongInTheIndex) {
  EXPECT_EQ(open_error(kGoldenIdx), "");
  EXPECT_THAT(open_error(with_byte(kGoldenIdx, 0, 'X')), HasSubstr("magic"));
  EXPECT_THAT(open_error(with_byte(kGoldenIdx, 9, 2)), HasSubstr("version 1, got 2"));
  EXPECT_THAT(open_error(with_byte(kGoldenIdx, 17, 7)), HasSubstr("dtype code"));
  EXPECT_THAT(open_error(with_byte(kGoldenIdx, 25, 0x40)), HasSubstr("counts that fit"));
  EXPECT_THAT(open_error(with_byte(kGoldenIdx, 18, 4)), HasSubstr("for 4 sequences"));
  EXPECT_THAT(open_error(with_byte(kGoldenIdx, 37, 0x80)), HasSubstr("negative length"));
  EXPECT_THAT(open_error(with_byte(kGoldenIdx, 34, 9)), HasSubstr("sequence 0 ends at byte 18"));
  EXPECT_THAT(open_error(with_byte(kGoldenIdx, 54, 2)), HasSubstr("expected sequence 1 at byte 6"));
  EXPECT_THAT(open_error(with_byte(kGoldenIdx, 70, 1)), HasSubstr("document indices that rise"));
  EXPECT_THAT(open_error(with_byte(kGoldenIdx, 94, 2)),
              HasSubstr("document indices that end at 3"));
  EXPECT_THAT(open_error(kGoldenIdx, kGoldenBin + "xx"), HasSubstr("of 8 bytes, got 10"));
  EXPECT_THAT(open_error(kGoldenIdx.substr(0, 20)), HasSubstr("at least 34 bytes, got 20"));
}

}  // namespace
}  // namespace anabatic::io
