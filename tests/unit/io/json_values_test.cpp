// SPDX-License-Identifier: Apache-2.0
#include "io/data/json_values.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "anabatic/error.h"
#include "unit/io/test_files.h"

namespace anabatic::io {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

constexpr std::int64_t kMostBytes = std::int64_t{4} << 20;

// "LINE:VALUE" of each.
std::vector<std::string> values_of(const TempDirectory& directory, const std::string& content) {
  write_text(directory / "a.json", content);
  JsonValueReader reader(directory / "a.json", kMostBytes);
  std::vector<std::string> values;
  std::string_view value;
  while (reader.next(value))
    values.push_back(std::to_string(reader.line_number()) + ":" + std::string(value));
  return values;
}

TEST(JsonValueReader, GivesTheElementsOfAnArray) {
  const TempDirectory directory;
  EXPECT_THAT(
      values_of(directory, "[{\"a\": [1, {}]},\n\n {\"b\": \"]}\\\"\\\\\"\n}, 3,\"x,\" ]\n"),
      ElementsAre("1:{\"a\": [1, {}]}", "3:{\"b\": \"]}\\\"\\\\\"\n}", "4:3", "4:\"x,\""));
  EXPECT_THAT(values_of(directory, "\xEF\xBB\xBF [ ]"), IsEmpty());
  EXPECT_THAT(values_of(directory, ""), IsEmpty());
}

TEST(JsonValueReader, GivesValuesOneAfterTheOther) {
  const TempDirectory directory;
  EXPECT_THAT(values_of(directory, "{\"a\":1}\n{\"b\":\n2}{}\n"),
              ElementsAre("1:{\"a\":1}", "2:{\"b\":\n2}", "3:{}"));
}

TEST(JsonValueReader, ReadsAcrossBufferBounds) {
  const TempDirectory directory;
  std::string content = "[";
  std::vector<std::string> want;
  for (int i = 0; content.size() < (std::size_t{5} << 20); ++i) {
    const std::string value = "{\"text\": \"" +
                              std::string(static_cast<std::size_t>(i % 5000), '\\') +
                              std::string(static_cast<std::size_t>(i % 5000 % 2), 'n') + "\"}";
    content += (i > 0 ? ",\n" : "") + value;
    want.push_back(std::to_string(i + 1) + ":" + value);
  }
  EXPECT_TRUE(values_of(directory, content + "]") == want);
}

TEST(JsonValueReader, NamesTheLineOfWhatIsBroken) {
  const TempDirectory directory;
  const auto error = [&](const std::string& content) {
    return error_of([&] { values_of(directory, content); });
  };
  EXPECT_THAT(error("[{}\n{}]"), HasSubstr("a.json:2: expected a comma or the end of the array"));
  EXPECT_THAT(error("[{},\n"), HasSubstr("a.json:2: expected a value or the end of the array, got "
                                         "the end of the file"));
  EXPECT_THAT(error("[{}\n"), HasSubstr("a.json:2: expected a comma or the end of the array"));
  EXPECT_THAT(error("["), HasSubstr("a.json:1: expected a value or the end"));
  EXPECT_THAT(error("[{}]\n\n{}"), HasSubstr("a.json:3: expected nothing after the array"));
  EXPECT_THAT(error("[\n\"" + std::string(kMostBytes, 'a') + "\"]"),
              HasSubstr("a.json:2: expected a JSON value of at most 4194304 bytes"));
  EXPECT_THAT(values_of(directory, "{\"a\": \"\\"), ElementsAre("1:{\"a\": \"\\"));
}

TEST(TextOfRecord, SaysWhichFieldsThereAre) {
  EXPECT_EQ(text_of_record("{\"text\": \"a\\n\"}", "text"), "a\n");
  EXPECT_THAT(error_of([] { text_of_record("{\"messages\": [], \"id\": 1}", "text"); }),
              HasSubstr("expected the field \"text\", which is missing; the object has \"id\", "
                        "\"messages\"; train.objective: sft"));
  EXPECT_THAT(error_of([] { text_of_record("{\"chosen\": \"a\"}", "text"); }),
              HasSubstr("train.objective: dpo"));
  EXPECT_THAT(error_of([] { text_of_record("[{\"text\": \"a\"}]", "text"); }),
              HasSubstr("data.format: json"));
}

}  // namespace
}  // namespace anabatic::io
