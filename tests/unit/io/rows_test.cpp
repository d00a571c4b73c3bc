// SPDX-License-Identifier: Apache-2.0
#include "io/data/rows.h"

#include <fmt/core.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <fstream>

#include "anabatic/error.h"
#include "base/text.h"
#include "io/data/reference_file.h"
#include "io/data/tokenize_files.h"
#include "io/data/weight_file.h"
#include "unit/io/test_files.h"

namespace anabatic::io {
namespace {

using ::testing::HasSubstr;

TrainingRow read(const std::string& text) {
  const OrderedJson row = parse_row(text);
  return read_row(row, kind_of_row(row), "text");
}

std::string error_in(const std::string& text) {
  return error_of([&] { read(text); });
}

TEST(Rows, OfEachKindBecomeTextOrMessages) {
  EXPECT_EQ(read(R"({"text": "abc", "id": 7})").text, "abc");
  const TrainingRow completion = read(R"({"prompt": "a b", "completion": " c"})");
  EXPECT_EQ(completion.text, "a b c");
  EXPECT_EQ(completion.prompt_bytes, 3u);

  const auto messages = [](const std::string& text) { return read(text).chat["messages"].dump(); };
  const std::string dialogue =
      R"([{"role":"user","content":"q"},{"role":"assistant","content":"a"}])";
  const TrainingRow chat =
      read(fmt::format(R"({{"messages": {}, "tools": [{{"z": 1, "a": 2}}]}})", dialogue));
  EXPECT_TRUE(chat.is_chat);
  EXPECT_EQ(chat.chat.dump(),
            fmt::format(R"({{"messages":{},"tools":[{{"z":1,"a":2}}]}})", dialogue));
  EXPECT_EQ(chat.first_completion, 1u);
  EXPECT_EQ(messages(R"({"conversations": [{"from": "human", "value": "q"},
                                           {"from": "gpt", "value": "a"}]})"),
            dialogue);
  EXPECT_EQ(messages(R"({"system": "s", "conversations": [{"from": "gpt", "value": "a",
                                                           "weight": 0.5}]})"),
            R"([{"role":"system","content":"s"},{"role":"assistant","content":"a","weight":0.5}])");
  EXPECT_EQ(messages(R"({"instruction": "q", "input": "", "output": "a"})"), dialogue);
  EXPECT_EQ(messages(R"({"instruction": "q", "input": "r", "output": "a"})"),
            R"([{"role":"user","content":"q\n\nr"},{"role":"assistant","content":"a"}])");
  const TrainingRow lists = read(R"({"prompt": [{"role": "user", "content": "q"}],
                                     "completion": [{"role": "assistant", "content": "a"}]})");
  EXPECT_EQ(lists.chat["messages"].dump(), dialogue);
  EXPECT_EQ(lists.first_completion, 1u);
}

TEST(Rows, OfWrongFormAreRefusedWithWhatWasExpected) {
  EXPECT_THAT(error_in("[1]"), HasSubstr("expected a JSON object, got array"));
  EXPECT_THAT(error_in("{\"a\": 1"), HasSubstr("expected a JSON object, got: "));
  EXPECT_THAT(error_in(R"({"body": "x"})"), HasSubstr("the object has \"body\""));
  EXPECT_THAT(error_in(R"({"messages": [], "completion": "x"})"), HasSubstr("got both"));
  EXPECT_THAT(error_in(R"({"messages": [], "prompt": "x"})"), HasSubstr("got both"));
  EXPECT_THAT(error_in(R"({"messages": []})"),
              HasSubstr("expected a list with at least one message in \"messages\", got []"));
  EXPECT_THAT(error_in(R"({"messages": [{"role": "user", "content": "q"}]})"),
              HasSubstr("expected a turn of the assistant, got none in 1 messages"));
  EXPECT_THAT(error_in(R"({"messages": [{"content": "q"}]})"),
              HasSubstr("\"role\" of messages[0], which is missing"));
  EXPECT_THAT(error_in(R"({"messages": [{"role": "assistant", "content": null}]})"),
              HasSubstr("expected \"content\" or \"tool_calls\" of messages[0]"));
  EXPECT_THAT(error_in(R"({"messages": [{"role": "assistant", "content": 7}]})"),
              HasSubstr("expected a string or a list of parts in \"content\" of messages[0]"));
  EXPECT_THAT(error_in(R"({"prompt": "x", "completion": []})"), HasSubstr("two strings"));
  EXPECT_THAT(error_in(R"({"prompt": "x", "completion": ""})"), HasSubstr("an empty one"));
  EXPECT_THAT(error_in(R"({"chosen": "x", "rejected": "y"})"),
              HasSubstr("to fine-tune on, got {\"prompt\", \"chosen\""));
}

TEST(Rows, OfPreferencesHaveOnePromptAndTwoCompletions) {
  const auto pair_in = [](const std::string& text) { return read_preference(parse_row(text)); };
  const PreferenceRow texts = pair_in(R"({"prompt": "a", "chosen": "b", "rejected": "c"})");
  EXPECT_FALSE(texts.is_chat);
  EXPECT_EQ(texts.prompt, "a");
  const std::string user = R"({"role":"user","content":"q"})",
                    good = R"({"role":"assistant","content":"a"})",
                    bad = R"({"role":"assistant","content":"b"})";
  const PreferenceRow lists = pair_in(fmt::format(
      R"({{"chosen": [{0}, {1}], "rejected": [{0}, {2}, {0}], "tools": [1]}})", user, good, bad));
  EXPECT_TRUE(lists.is_chat);
  EXPECT_EQ(lists.prompt.dump(), fmt::format("[{}]", user));
  EXPECT_EQ(lists.chosen.dump(), fmt::format("[{}]", good));
  EXPECT_EQ(lists.rejected.dump(), fmt::format("[{},{}]", bad, user));
  EXPECT_EQ(lists.others.dump(), R"({"tools":[1]})");
  const auto error = [&](const std::string& text) { return error_of([&] { pair_in(text); }); };
  EXPECT_THAT(error(fmt::format(R"({{"chosen": [{0}], "rejected": [{0}, {1}]}})", user, good)),
              HasSubstr("got 1 common ones of 1 and 2"));
  EXPECT_THAT(error(R"({"prompt": "a", "chosen": "b", "rejected": ["c"]})"),
              HasSubstr("all of them, got string, string and array"));
  EXPECT_THAT(error(R"({"prompt": [], "chosen": [], "rejected": [1]})"),
              HasSubstr("at least one message in \"chosen\""));
}

class RowFiles : public ::testing::Test {
 protected:
  void write(const std::string& text) { std::ofstream(file()) << text; }
  std::filesystem::path file() const { return directory_ / "rows.jsonl"; }

  // An id a byte; the completion's weigh as many as the prompt has bytes.
  TokenizeCounts tokenize(const std::string& prefix, int threads) {
    TokenizeOptions options{.vocab_size = 256, .threads = threads, .has_rows = true};
    options.encode_row = [](OrderedJson json, RowKind kind, std::vector<std::int32_t>& ids,
                            std::vector<float>& weights, std::vector<std::size_t>& ends) {
      const TrainingRow row = read_row(std::move(json), kind, "text");
      for (std::size_t i = 0; i < row.text.size(); ++i) {
        ids.push_back(static_cast<unsigned char>(row.text[i]));
        weights.push_back(i < row.prompt_bytes ? 0.0f : static_cast<float>(row.prompt_bytes));
      }
      ends.push_back(ids.size());
    };
    const DataFile source{.path = file(), .format = DataFormat::kJsonLines};
    return tokenize_files(std::span(&source, 1), nullptr, directory_ / prefix, options);
  }

  std::string bytes(const std::string& prefix) const {
    std::string all;
    for (const char* suffix : {".bin", ".idx", ".weights"})
      all += read_file(with_suffix(directory_ / prefix, suffix));
    return all;
  }

  TempDirectory directory_;
};

TEST_F(RowFiles, HaveTheSameBytesForAnyNumberOfThreads) {
  std::string text;
  for (int i = 0; i < 60000; ++i)
    text += fmt::format("{{\"prompt\": \"{}\", \"completion\": \"{}\"}}\n",
                        std::string(static_cast<std::size_t>(i % 7 + 1), 'p'), i);
  write(text);
  const TokenizeCounts counts = tokenize("one", 1);
  EXPECT_EQ(counts.documents, 60000);
  EXPECT_EQ(counts.row_kinds, "{\"prompt\", \"completion\"}");
  tokenize("three", 3);
  EXPECT_TRUE(bytes("one") == bytes("three"));
  const WeightFile weights(*indexed_pair(directory_ / "one"));
  std::vector<float> first(5);
  weights.read(0, first);
  EXPECT_THAT(first, ::testing::ElementsAre(0, 1, 0, 0, 2));  // "p0", "pp1"
}

TEST_F(RowFiles, TellThatTheirDocumentsArePairs) {
  write(R"({"prompt": "p", "chosen": "ab", "rejected": "c"})");
  TokenizeOptions options{.vocab_size = 256, .has_rows = true, .has_pairs = true};
  options.encode_row = [](const OrderedJson&, RowKind, std::vector<std::int32_t>& ids,
                          std::vector<float>& weights, std::vector<std::size_t>& ends) {
    ids = {1, 2, 3, 1, 4};
    weights = {0, 1, 1, 0, 1};
    ends = {3, 5};
  };
  const DataFile source{.path = file(), .format = DataFormat::kJsonLines};
  tokenize_files(std::span(&source, 1), nullptr, directory_ / "pairs", options);
  const IndexedPaths pair = *indexed_pair(directory_ / "pairs");
  EXPECT_TRUE(WeightFile(pair).is_of_pairs());
  EXPECT_EQ(IndexedFile(pair).num_documents(), 2);
  write("{\"text\": \"x\"}\n");
  EXPECT_THAT(
      error_of([&] { tokenize_files(std::span(&source, 1), nullptr, directory_ / "no", options); }),
      HasSubstr(":1: expected rows of {\"prompt\", \"chosen\", \"rejected\"}"));
}

TEST(ReferenceFiles, AreFoundByTheirKeyAlone) {
  const TempDirectory directory;
  const std::filesystem::path path = directory / "data.reference";
  const std::string key(32, 'k');
  EXPECT_FALSE(ReferenceFile::find(path, key, 4));
  {
    ReferenceFileWriter writer(path, key, 4);
    writer.write(1, std::vector<float>{-0.5f, -2.0f});
    EXPECT_FALSE(ReferenceFile::find(path, key, 4)) << "not before finish()";
    writer.finish();
  }
  const auto found = ReferenceFile::find(path, key, 4);
  ASSERT_TRUE(found);
  std::vector<float> values(3);
  found->read(1, values);
  EXPECT_THAT(values, ::testing::ElementsAre(-0.5f, -2.0f, 0.0f));
  EXPECT_FALSE(ReferenceFile::find(path, std::string(32, 'j'), 4));
  EXPECT_FALSE(ReferenceFile::find(path, key, 5));
  std::string bytes = read_file(path);
  bytes.back() ^= 1;
  std::ofstream(path) << bytes;
  EXPECT_FALSE(ReferenceFile::find(path, key, 4)) << "damaged";
  { ReferenceFileWriter unfinished(path, key, 4); }
  EXPECT_FALSE(std::filesystem::exists(directory / "data.reference.partial"));
}

TEST_F(RowFiles, NameTheFirstTenBadRowsAndTheirNumber) {
  std::string text = "{\"prompt\": \"a\", \"completion\": \"b\"}\n\n";
  for (int i = 0; i < 14; ++i) text += "{\"prompt\": 1, \"completion\": \"b\"}\n";
  text += "{\"text\": \"x\"}\n";
  write(text);
  const std::string error = error_of([&] { tokenize("bad", 2); });
  EXPECT_THAT(error, HasSubstr("expected good rows, got 15 bad ones:\n  " + file().string() +
                               ":3: expected a string in the field \"prompt\", got number"));
  EXPECT_THAT(error, HasSubstr(file().string() + ":12: "));
  EXPECT_THAT(error, ::testing::Not(HasSubstr(file().string() + ":13: ")));
  EXPECT_FALSE(std::filesystem::exists(directory_ / "bad.weights.partial"));
  write("{\"prompt\": \"a\", \"completion\": \"b\"}\n{\"text\": \"x\"}\n");
  EXPECT_THAT(error_of([&] { tokenize("bad", 2); }),
              HasSubstr(":2: expected a row of {\"prompt\", \"completion\"}, the kind that line 1 "
                        "has, got {\"text\"}"));
}

}  // namespace
}  // namespace anabatic::io
