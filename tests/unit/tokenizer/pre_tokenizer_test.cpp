// SPDX-License-Identifier: Apache-2.0
#include "io/tokenizer/pre_tokenizer.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "anabatic/error.h"
#include "base/json.h"
#include "io/tokenizer/normalizer.h"

namespace anabatic::io::tokenizer {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::ThrowsMessage;

std::vector<std::string> words(const std::string& json, std::string_view text,
                               Start start = Start::kInput) {
  const nlohmann::json component = parse_json(json);
  const PreTokenizers stages(JsonNode(component, "", "pre_tokenizer"));
  CutScratch scratch;
  std::vector<std::string> result;
  stages.cut({text, start}, scratch, [&](std::string_view word) { result.emplace_back(word); });
  return result;
}

std::string split(const std::string& behavior, bool invert = false) {
  return R"({"type": "Split", "pattern": {"String": "-"}, "behavior": ")" + behavior +
         R"(", "invert": )" + (invert ? "true" : "false") + "}";
}

TEST(Split, TreatsDelimitersAsTheBehaviorSays) {
  const std::string text = "the-final--countdown";
  EXPECT_THAT(words(split("Removed"), text), ElementsAre("the", "final", "countdown"));
  EXPECT_THAT(words(split("Isolated"), text),
              ElementsAre("the", "-", "final", "-", "-", "countdown"));
  EXPECT_THAT(words(split("MergedWithPrevious"), text),
              ElementsAre("the-", "final-", "-", "countdown"));
  EXPECT_THAT(words(split("MergedWithNext"), text),
              ElementsAre("the", "-final", "-", "-countdown"));
  EXPECT_THAT(words(split("Contiguous"), text),
              ElementsAre("the", "-", "final", "--", "countdown"));
  EXPECT_THAT(words(split("Removed", true), text), ElementsAre("-", "-", "-"));
}

TEST(ByteLevel, CutsLikeGpt2AndHandsOutRawBytesAtTheEnd) {
  const std::string stage =
      R"({"type": "ByteLevel", "add_prefix_space": false, "trim_offsets": true, "use_regex": true})";
  EXPECT_THAT(words(stage, "I'll  go é!\n"), ElementsAre("I", "'ll", " ", " go", " é", "!", "\n"));
  const std::string before_another =
      R"({"type": "Sequence", "pretokenizers": [)" + stage + R"(, {"type": "WhitespaceSplit"}]})";
  EXPECT_THAT(words(before_another, "a é"), ElementsAre("a", "ĠÃ©"));
}

TEST(ByteLevel, PutsASpaceBeforeEachPieceButNotIntoRunningText) {
  const std::string stage =
      R"({"type": "ByteLevel", "add_prefix_space": true, "use_regex": false})";
  EXPECT_THAT(words(stage, "a"), ElementsAre(" a"));
  EXPECT_THAT(words(stage, " a"), ElementsAre(" a"));
  EXPECT_THAT(words(stage, "a", Start::kContinuation), ElementsAre("a"));
}

TEST(Digits, StandAloneOrTogether) {
  EXPECT_THAT(words(R"({"type": "Digits", "individual_digits": true})", "a12½b"),
              ElementsAre("a", "1", "2", "½", "b"));
  EXPECT_THAT(words(R"({"type": "Digits", "individual_digits": false})", "a12½b"),
              ElementsAre("a", "12½", "b"));
}

TEST(Metaspace, PrependsAsTheSchemeSays) {
  const auto stage = [](const std::string& scheme, bool split) {
    return R"({"type": "Metaspace", "replacement": "▁", "prepend_scheme": ")" + scheme +
           R"(", "split": )" + (split ? "true" : "false") + "}";
  };
  EXPECT_THAT(words(stage("always", true), "a  b"), ElementsAre("▁a", "▁", "▁b"));
  EXPECT_THAT(words(stage("always", false), "a b", Start::kInside), ElementsAre("▁a▁b"));
  EXPECT_THAT(words(stage("first", false), "a b", Start::kInside), ElementsAre("a▁b"));
  EXPECT_THAT(words(stage("first", false), "a b"), ElementsAre("▁a▁b"));
  EXPECT_THAT(words(stage("never", true), "a b"), ElementsAre("a", "▁b"));
  EXPECT_THAT(words(stage("always", false), " a"), ElementsAre("▁a"));
  EXPECT_THAT(words(stage("always", false), "a", Start::kContinuation), ElementsAre("a"));
}

TEST(Metaspace, ReadsTheOlderSpelling) {
  EXPECT_THAT(
      words(R"({"type": "Metaspace", "replacement": "▁", "add_prefix_space": false})", "a b"),
      ElementsAre("a", "▁b"));
  EXPECT_THAT(
      words(R"({"type": "Metaspace", "replacement": "▁", "add_prefix_space": true})", "a b"),
      ElementsAre("▁a", "▁b"));
}

TEST(PreTokenizers, NameWhatTheyDoNotKnow) {
  EXPECT_THAT([] { words(R"({"type": "UnicodeScripts"})", "a"); },
              ThrowsMessage<Unsupported>(HasSubstr("the pre-tokenizer `UnicodeScripts`")));
  EXPECT_THAT([] { words(R"({"type": "Sequence", "pretokenizers": [{"type": "Digits"}]})", "a"); },
              ThrowsMessage<InvalidArgument>(HasSubstr(
                  "pre_tokenizer.pretokenizers[0]: expected a field `individual_digits`")));
  EXPECT_THAT(
      [] { words(split("Sometimes"), "a"); },
      ThrowsMessage<InvalidArgument>(HasSubstr("pre_tokenizer.behavior: expected Isolated")));
}

std::string normalized(const std::string& json, std::string text, bool is_continuation = false) {
  const nlohmann::json component = parse_json(json);
  RegexScratch scratch;
  for (const auto& normalizer : load_normalizers(JsonNode(component, "", "normalizer")))
    normalizer->apply(text, is_continuation, scratch);
  return text;
}

TEST(Normalizers, ComposeAndDecompose) {
  EXPECT_EQ(normalized(R"({"type": "NFC"})", "ae\u0301 o\u0308x"), "aé öx");
  EXPECT_EQ(normalized(R"({"type": "NFD"})", "é"), "e\u0301");
  EXPECT_EQ(normalized(R"({"type": "NFKC"})", "ﬁ①"), "fi1");
  EXPECT_EQ(normalized(R"({"type": "NFKD"})", "ﬁé"), "fie\u0301");
  EXPECT_EQ(normalized(R"({"type": "Lowercase"})", "ÀİΣ"), "ài\u0307σ");
}

TEST(Normalizers, PrependReplaceAndStrip) {
  const std::string chain = R"({"type": "Sequence", "normalizers": [
      {"type": "Prepend", "prepend": "▁"},
      {"type": "Replace", "pattern": {"String": " "}, "content": "▁"}]})";
  EXPECT_EQ(normalized(chain, "a  b"), "▁a▁▁b");
  EXPECT_EQ(normalized(chain, "a  b", true), "a▁▁b");
  EXPECT_EQ(normalized(chain, ""), "");
  EXPECT_EQ(
      normalized(R"({"type": "Replace", "pattern": {"Regex": "\\s+"}, "content": "-"})", "a \n b"),
      "a-b");
  EXPECT_EQ(
      normalized(R"({"type": "Strip", "strip_left": true, "strip_right": false})", "\u00a0 a "),
      "a ");
}

TEST(Normalizers, NameWhatTheyDoNotKnow) {
  EXPECT_THAT([] { normalized(R"({"type": "BertNormalizer"})", "a"); },
              ThrowsMessage<Unsupported>(HasSubstr("normalizer: the normalizer `BertNormalizer`")));
}

}  // namespace
}  // namespace anabatic::io::tokenizer
