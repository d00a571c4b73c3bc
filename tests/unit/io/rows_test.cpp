// SPDX-License-Identifier: Apache-2.0
#include "io/data/rows.h"

#include <fmt/core.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <fstream>

#include "anabatic/error.h"
#include "base/text.h"
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
  EXPECT_THAT(error_in(R"({"chosen": "x", "rejected": "y"})"), HasSubstr("cannot be trained on"));
}

class RowFiles : public ::testing::Test {
 protected:
  void write(const std::string& text) { std::ofstream(file()) << text; }
  std::filesystem::path file() const { return directory_ / "rows.jsonl"; }

  // An id a byte; the completion's weigh as many as the prompt has bytes.
  TokenizeCounts tokenize(const std::string& prefix, int threads) {
    TokenizeOptions options{.vocab_size = 256, .threads = threads, .has_rows = true};
    options.encode_row = [](OrderedJson json, RowKind kind, std::vector<std::int32_t>& ids,
                            std::vector<float>& weights) {
      const TrainingRow row = read_row(std::move(json), kind, "text");
      for (std::size_t i = 0; i < row.text.size(); ++i) {
        ids.push_back(static_cast<unsigned char>(row.text[i]));
        weights.push_back(i < row.prompt_bytes ? 0.0f : static_cast<float>(row.prompt_bytes));
      }
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
