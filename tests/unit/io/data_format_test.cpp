// SPDX-License-Identifier: Apache-2.0
#include "io/data/data_format.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/stat.h>

#include <array>

#include "anabatic/error.h"
#include "unit/io/test_files.h"

namespace anabatic::io {
namespace {

using ::testing::HasSubstr;

// What a file of this name and content is taken for, or the error.
std::string taken(const std::string& name, const std::string& content,
                  DataFormat asked = DataFormat::kAuto) {
  const TempDirectory directory;
  write_text(directory / name, content);
  std::string result;
  const std::string error =
      error_of([&] { result = describe(detect_format(directory / name, asked)); });
  return error.empty() ? result : error;
}

const std::string kLines = "{\"text\": \"a\"}\n{\"text\": \"b\"}\n";
const std::string kArray = "[{\"text\": \"a\"},\n {\"text\": \"b\"}]\n";

TEST(DetectFormat, GoesBySuffixInAnyCase) {
  for (const char* name : {"a.jsonl", "A.JSONL", "a.b.Jsonl", "a.NDJSON"})
    EXPECT_EQ(taken(name, kLines), "JSON lines") << name;
  for (const char* name : {"a.json", "A.JSON"}) {
    EXPECT_EQ(taken(name, kArray), "JSON") << name;
    EXPECT_EQ(taken(name, kLines), "JSON") << name;
  }
  for (const char* name : {"a.txt", "A.TXT", "a.text"})
    EXPECT_EQ(taken(name, "words"), "text") << name;
  EXPECT_EQ(taken("a.jsonl", "no JSON"), "JSON lines") << "its reader names the line";
  EXPECT_EQ(taken("a.txt", kLines), "text");
}

TEST(DetectFormat, GoesByContentWhereTheSuffixSaysNothing) {
  for (const char* name : {"a", "a.jsonl.bak", "a.json.1", "part-00000", ".jsonl", "a.dat"}) {
    EXPECT_EQ(taken(name, kLines), "JSON lines, by content") << name;
    EXPECT_EQ(taken(name, kArray), "JSON, by content") << name;
    EXPECT_EQ(taken(name, "words\n"), "text, by content") << name;
  }
  const std::string lines = "JSON lines, by content", json = "JSON, by content",
                    text = "text, by content";
  EXPECT_EQ(taken("a", "\xEF\xBB\xBF\n" + kLines), lines);
  EXPECT_EQ(taken("a", "{\"text\": \"a\"}"), lines);
  EXPECT_EQ(taken("a", "\n \r\n" + kLines + "{broken\n"), lines) << "its reader names the line";
  EXPECT_EQ(taken("a", "{\"messages\": []}\n{\"messages\": []}\n"), lines) << "likewise the field";
  EXPECT_EQ(taken("a", "[1, 2]\n[3]\n"), lines);
  EXPECT_EQ(taken("a", "{\"text\": \"" + std::string(3 << 20, 'x') + "\"}\n" + kLines), json);
  EXPECT_EQ(taken("a", "{\n  \"text\": \"a\"\n}\n{\n  \"text\": \"b\"\n}\n"), json);
  EXPECT_EQ(taken("a", "{\n  \"data\": [\n    1\n  ]\n}\n"), json);
  EXPECT_EQ(taken("a", "[\n  {\"text\": \"" + std::string(3 << 20, 'x') + "\"}\n]"), json);
  EXPECT_EQ(taken("a", "[\n  {\"text\": \"a\"},\n  {\"te"), json) << "its reader says that it ends";
  EXPECT_EQ(taken("a", "[\"a\", \"b\"]"), json);
  EXPECT_EQ(taken("a", "{\"text\": \"a"), json);
  EXPECT_EQ(taken("a", ""), text);
  EXPECT_EQ(taken("a", "12\n13\n"), text);
  EXPECT_EQ(taken("a", "[1] See also the list.\n"), text);
  EXPECT_EQ(taken("a", "[Music]\nla la\n"), text);
  EXPECT_EQ(taken("a", "{{Infobox}}\ntext\n"), text);
  EXPECT_EQ(taken("a.c", "{\n  int a = 0;\n}\n"), text);
  EXPECT_EQ(taken("a.md", "words\n" + kLines), text);
}

TEST(DetectFormat, ReadsGzipUnderAnyName) {
  for (const char* name : {"a.jsonl.gz", "A.JSONL.GZ", "a.jsonl"})
    EXPECT_EQ(taken(name, gzipped(kLines)), "JSON lines, gzip") << name;
  EXPECT_EQ(taken("a.txt.gz", gzipped("words")), "text, gzip");
  EXPECT_EQ(taken("a.json.Gz", gzipped(kArray)), "JSON, gzip");
  EXPECT_EQ(taken("a.gz", gzipped(kLines)), "JSON lines, by content, gzip");
  EXPECT_EQ(taken("a", gzipped("words")), "text, by content, gzip");
  EXPECT_THAT(taken("a.jsonl.gz", kLines), HasSubstr("a.jsonl.gz: expected gzip data"));
  EXPECT_THAT(taken("a.txt.gz", ""), HasSubstr("got an empty file"));
  EXPECT_THAT(taken("a.gz", gzipped(std::string("a\0b", 3))), HasSubstr("expected UTF-8 text"));
}

TEST(DetectFormat, RefusesWhatIsNoText) {
  EXPECT_THAT(taken("a", std::string("ab\0c", 4)),
              HasSubstr("binary data (byte 0x00 at offset 2)"));
  EXPECT_THAT(taken("a", "abc\xFF"), HasSubstr("byte 0xFF at offset 3"));
  EXPECT_THAT(taken("a.txt", std::string("\xFF\xFE"
                                         "a\0",
                                         4)),
              HasSubstr("UTF-16"));
  EXPECT_THAT(taken("a.parquet", std::string("PAR1\x15\0", 6)), HasSubstr("a Parquet file"));
  EXPECT_THAT(taken("a.jsonl.zst", "\x28\xB5\x2F\xFD\xFF"), HasSubstr("zstd"));
  EXPECT_THAT(taken("a.jsonl", "\x28\xB5\x2F\xFD\xFF"), HasSubstr("zstd"));
  // A character that the judged part cuts is none.
  EXPECT_EQ(taken("a", std::string((1 << 20) - 1, 'a') + "\xE4\xB8\xAD"), "text, by content");
}

TEST(DetectFormat, TakesWhatIsAsked) {
  EXPECT_EQ(taken("a.txt", kLines, DataFormat::kJsonLines), "JSON lines");
  EXPECT_EQ(taken("a.jsonl", kLines, DataFormat::kText), "text");
  EXPECT_EQ(taken("a", kArray, DataFormat::kJson), "JSON");
  EXPECT_EQ(taken("a", std::string("ab\0c", 4), DataFormat::kText), "text");
  EXPECT_EQ(taken("a.bin", "words", DataFormat::kText), "text");
  EXPECT_THAT(taken("a.bin", "words"), HasSubstr("no .idx next to it"));
  EXPECT_THAT(taken("a.txt", "words", DataFormat::kTokens), HasSubstr("expected a .bin/.idx pair"));
  EXPECT_EQ(data_format_from_string("jsonl"), DataFormat::kJsonLines);
  EXPECT_EQ(data_format_from_string("csv"), std::nullopt);
}

TEST(DetectFormat, FindsAPairInAnyCase) {
  const TempDirectory directory;
  write_documents(directory / "a.v1", {{1, 2}});
  write_documents(directory / "b", {{1, 2}});
  std::filesystem::rename(directory / "b.bin", directory / "b.BIN");
  std::filesystem::rename(directory / "b.idx", directory / "b.IDX");
  for (const char* name : {"a.v1", "a.v1.bin", "a.v1.idx", "b", "b.BIN", "b.IDX"}) {
    EXPECT_EQ(describe(detect_format(directory / name, DataFormat::kAuto)), ".bin/.idx") << name;
    EXPECT_EQ(IndexedFile(*indexed_pair(directory / name)).num_tokens(), 2) << name;
  }
}

TEST(DetectFormats, NamesEveryProblem) {
  const TempDirectory directory;
  std::filesystem::create_directory(directory / "folder");
  ASSERT_EQ(::mkfifo((directory / "pipe").c_str(), 0600), 0);
  write_text(directory / "good.txt", "a");
  const std::array files = {directory / "none", directory / "folder", directory / "good.txt",
                            directory / "pipe"};
  const std::string error = error_of([&] { detect_formats(files, DataFormat::kAuto); });
  EXPECT_THAT(error,
              HasSubstr("none: expected a text or JSON file, or a .bin/.idx pair, got no file"));
  EXPECT_THAT(error, HasSubstr("folder: expected a text or JSON file, or a .bin/.idx pair, got a "
                               "folder"));
  EXPECT_THAT(error, HasSubstr("pipe or device"));
  EXPECT_THAT(error, ::testing::Not(HasSubstr("good.txt")));
}

}  // namespace
}  // namespace anabatic::io
