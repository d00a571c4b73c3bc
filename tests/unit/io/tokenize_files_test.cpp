// SPDX-License-Identifier: Apache-2.0
#include "io/data/tokenize_files.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <mutex>
#include <set>

#include "anabatic/error.h"
#include "unit/io/test_files.h"

namespace anabatic::io {
namespace {

using ::testing::HasSubstr;

const TokenizeOptions kOptions = {.vocab_size = 300, .ends = {.suffix = {256}}};

TokenizeCounts tokenize(const TempDirectory& directory, std::vector<std::string> names,
                        const TokenizeOptions& options, const Tokenize& function = tokenize_bytes) {
  std::vector<std::filesystem::path> files;
  for (const std::string& name : names) files.push_back(directory / name);
  return tokenize_files(detect_formats(files, DataFormat::kAuto), function, directory / "out",
                        options);
}

TEST(TokenizeFiles, TakesATextFileAndEachJsonLineAsADocument) {
  const TempDirectory directory;
  write_text(directory / "a.txt", "ab\n");
  write_text(directory / "b.jsonl",
             "{\"text\": \"c\\u0041\"}\n\n  \r\n{\"id\": 1, \"text\": \"\"}\r\n{\"text\":\"z\"}");
  const TokenizeCounts counts = tokenize(directory, {"b.jsonl", "a.txt"}, kOptions);
  EXPECT_EQ(documents_of(IndexedFile(directory / "out")),
            (Documents{{'c', 'A', 256}, {256}, {'z', 256}, {'a', 'b', '\n', 256}}));
  EXPECT_EQ(counts.documents, 4);
  EXPECT_EQ(counts.tokens, 10);
}

TEST(TokenizeFiles, TakesEachObjectOfAJsonArrayAsADocument) {
  const TempDirectory directory;
  write_text(directory / "a.json", "[{\"text\": \"ab\"},\n {\n  \"text\": \"c\"\n }\n]\n");
  write_text(directory / "none.json", "[]");
  write_text(directory / "b.json.gz", gzipped("{\"text\": \"d\"}\n{\"text\": \"\"}"));
  write_text(directory / "c.txt.gz", gzipped("e") + gzipped("f"));
  const TokenizeCounts counts =
      tokenize(directory, {"a.json", "none.json", "b.json.gz", "c.txt.gz"}, kOptions);
  EXPECT_EQ(documents_of(IndexedFile(directory / "out")),
            (Documents{{'a', 'b', 256}, {'c', 256}, {'d', 256}, {256}, {'e', 'f', 256}}));
  EXPECT_EQ(counts.documents, 5);
}

TEST(TokenizeFiles, NamesTheFirstProblemOfAJsonArray) {
  const TempDirectory directory;
  const auto error = [&](const std::string& content) {
    write_text(directory / "a.json", content);
    return error_of([&] { tokenize(directory, {"a.json"}, kOptions); });
  };
  EXPECT_THAT(error("[{\"text\": \"\"},\n {\"txt\": \"\"},\n"),
              HasSubstr("a.json:2: expected the field \"text\", which is missing"));
  EXPECT_THAT(error("[{\"text\": \"\"},\n"), HasSubstr("a.json:2: expected a value or the end"));
  EXPECT_THAT(error("[{\"text\": \"\"},\n [1]]"), HasSubstr("a.json:2: expected a JSON object"));
  EXPECT_THAT(error("{\"data\": []}"), HasSubstr("a.json:1: expected the field \"text\""));
  EXPECT_FALSE(std::filesystem::exists(directory / "out.idx"));
}

TEST(TokenizeFiles, LeavesEosOutOnRequest) {
  const TempDirectory directory;
  write_text(directory / "a.jsonl", "{\"body\": \"xy\"}\n{\"body\": \"\"}\n");
  TokenizeOptions options = kOptions;
  options.ends = {};
  options.json_field = "body";
  tokenize(directory, {"a.jsonl"}, options);
  EXPECT_EQ(documents_of(IndexedFile(directory / "out")), (Documents{{'x', 'y'}, {}}));
}

TEST(TokenizeFiles, CutsTheSameTextAlikeInTextAndJson) {
  const TempDirectory directory;
  std::string text;
  for (int i = 0; text.size() < (std::size_t{5} << 19); ++i) {
    text += "line " + std::to_string(i) + (i % 3 == 0 ? "\n" : ". ");
  }
  std::string json;
  for (const char c : text) json += c == '\n' ? "\\n" : std::string(1, c);
  write_text(directory / "a.txt", text);
  write_text(directory / "a.jsonl", "{\"text\": \"" + json + "\"}");
  std::mutex mutex;
  std::multiset<std::pair<std::size_t, bool>> chunks;
  const auto record = [&](std::string_view chunk, bool begins, std::vector<std::int32_t>& ids) {
    const std::lock_guard lock(mutex);
    chunks.emplace(chunk.size(), begins);
    tokenize_bytes(chunk, begins, ids);
  };
  tokenize(directory, {"a.txt"}, kOptions, record);
  const auto text_chunks = std::exchange(chunks, {});
  tokenize(directory, {"a.jsonl"}, kOptions, record);
  EXPECT_EQ(chunks, text_chunks);
  EXPECT_EQ(chunks.size(), 3u);
  EXPECT_EQ(std::ranges::count_if(chunks, [](const auto& chunk) { return chunk.second; }), 1);
}

TEST(TokenizeFiles, WritesTheSameBytesForAnyThreadCount) {
  const TempDirectory directory;
  std::string text;
  std::string json;
  for (int i = 0; text.size() < (std::size_t{4} << 20); ++i) {
    text += "words " + std::to_string(i) + "\n";
    json += "{\"text\": \"document " + std::to_string(i) + "\"}\n";
  }
  write_text(directory / "a.txt", text);
  write_text(directory / "b.jsonl", json);
  TokenizeOptions options = kOptions;
  std::string bin;
  std::string idx;
  for (const int threads : {1, 2, 5}) {
    options.threads = threads;
    tokenize(directory, {"a.txt", "b.jsonl", "a.txt"}, options);
    if (threads == 1) {
      bin = read_text(directory / "out.bin");
      idx = read_text(directory / "out.idx");
    }
    EXPECT_TRUE(read_text(directory / "out.bin") == bin) << threads;
    EXPECT_TRUE(read_text(directory / "out.idx") == idx) << threads;
  }
  EXPECT_GT(bin.size(), std::size_t{2} * (std::size_t{8} << 20));
}

TEST(TokenizeFiles, NamesFileAndLineOfBadJson) {
  const TempDirectory directory;
  const auto error = [&](const std::string& line) {
    write_text(directory / "a.jsonl", "{\"text\": \"x\"}\n\n" + line + "\n{\"broken");
    TokenizeOptions options = kOptions;
    options.threads = 3;
    return error_of([&] { tokenize(directory, {"a.jsonl"}, options); });
  };
  EXPECT_THAT(error("{\"text\": "), HasSubstr("a.jsonl:3: expected a JSON object"));
  EXPECT_THAT(error("[1]"), HasSubstr("a.jsonl:3: expected a JSON object, got array"));
  EXPECT_THAT(error("{\"txt\": \"a\"}"), HasSubstr("a.jsonl:3: expected the field \"text\""));
  EXPECT_THAT(error("{\"text\": 5}"), HasSubstr("a.jsonl:3: expected a string"));
  EXPECT_THAT(error("{\"text\": \"\xFF\"}"), HasSubstr("a.jsonl:3: "));
  EXPECT_FALSE(std::filesystem::exists(directory / "out.idx"));
  EXPECT_FALSE(std::filesystem::exists(directory / "out.bin.partial"));
}

TEST(TokenizeFiles, RefusesIdsOutsideTheVocabulary) {
  const TempDirectory directory;
  write_text(directory / "a.txt", "abc");
  TokenizeOptions options = kOptions;
  options.vocab_size = 99;
  options.ends = {};
  EXPECT_THAT(error_of([&] { tokenize(directory, {"a.txt"}, options); }),
              HasSubstr("a.txt at byte 0: the tokenizer gave the id 99"));
  options.ends.prefix = {99};
  EXPECT_THAT(error_of([&] { tokenize(directory, {"a.txt"}, options); }),
              HasSubstr("a special token's id in [0, 99), got 99"));
}

TEST(TokenizeFiles, PutsSpecialTokensAroundEachDocumentOnce) {
  const TempDirectory directory;
  TokenizeOptions options = kOptions;
  options.ends = {.prefix = {'<'}, .suffix = {'>'}};
  write_text(directory / "a.jsonl",
             "{\"text\": \"ab\"}\n{\"text\": \"<c\"}\n{\"text\": \"d>\"}\n{\"text\": \"\"}\n"
             "{\"text\": \"<>\"}\n");
  write_text(directory / "b.txt", "<e");
  tokenize(directory, {"a.jsonl", "b.txt"}, options);
  EXPECT_EQ(documents_of(IndexedFile(directory / "out")), (Documents{{'<', 'a', 'b', '>'},
                                                                     {'<', 'c', '>'},
                                                                     {'<', 'd', '>'},
                                                                     {'<', '>'},
                                                                     {'<', '>'},
                                                                     {'<', 'e', '>'}}));
}

TEST(TokenizeFiles, PutsSpecialTokensAtTheEndsOfADocumentThatIsCut) {
  const TempDirectory directory;
  std::string text;
  while (text.size() < (std::size_t{5} << 19)) text += "a line\n";
  write_text(directory / "a.txt", text);
  TokenizeOptions options = kOptions;
  options.ends = {.prefix = {'<'}, .suffix = {'>'}};
  options.threads = 2;
  tokenize(directory, {"a.txt"}, options);
  const Documents documents = documents_of(IndexedFile(directory / "out"));
  ASSERT_EQ(documents.size(), 1u);
  EXPECT_EQ(documents[0].size(), text.size() + 2);
  EXPECT_EQ(documents[0].front(), '<');
  EXPECT_EQ(documents[0].back(), '>');
  EXPECT_EQ(std::ranges::count(documents[0], '<'), 1);
}

}  // namespace
}  // namespace anabatic::io
