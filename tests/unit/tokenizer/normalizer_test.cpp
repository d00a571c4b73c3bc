// SPDX-License-Identifier: Apache-2.0
#include "io/tokenizer/normalizer.h"

#include <fmt/core.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "anabatic/error.h"
#include "base/base64.h"
#include "base/json.h"
#include "io/tokenizer/graphemes.h"
#include "small_character_map.h"

namespace anabatic::io::tokenizer {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::ThrowsMessage;

std::string normalized(const std::string& component, std::string text,
                       bool is_continuation = false) {
  const nlohmann::json json = parse_json(component);
  RegexScratch scratch;
  for (const auto& normalizer : load_normalizers(JsonNode(json, "normalizer")))
    normalizer->apply(text, is_continuation, scratch);
  return text;
}

std::string precompiled(std::string_view blob) {
  return fmt::format(R"({{"type": "Precompiled", "precompiled_charsmap": "{}"}})",
                     encode_base64(blob));
}

TEST(Precompiled, ReplacesWhatTheMapNames) {
  const std::string map = precompiled(
      character_map({{"A", "a"}, {"\uFB01", "fi"}, {"\u00AD", ""}, {"e\u0301", "\u00E9"}}));
  EXPECT_EQ(normalized(map, "BA\uFB01x"), "Bafix");
  EXPECT_EQ(normalized(map, "a\u00ADb\u00AD"), "ab");
  EXPECT_EQ(normalized(map, "e e\u0301"), "e \u00E9");
}

// As Hugging Face does: what follows the shortest spelling in a cluster is lost.
TEST(Precompiled, ShortClustersAreLookedUpAsAWhole) {
  const std::string map = precompiled(character_map({{"A", "a"}, {"A\u0301", "\u00E1"}}));
  EXPECT_EQ(normalized(map, "A\u0301"), "a");
  EXPECT_EQ(normalized(map, "A\u0301\u0301\u0301"), "a\u0301\u0301\u0301");
}

TEST(Precompiled, DamagedMapsAreRefused) {
  const std::string good = character_map({{"A", "a"}, {"\u00E9", "e"}});
  for (std::size_t size = 0; size < 4 + 4 * 512; size += 7)
    EXPECT_THROW(normalized(precompiled(good.substr(0, size)), "A"), InvalidArgument) << size;
  EXPECT_THAT([&] { normalized(precompiled(good.substr(0, good.size() - 2)), "A"); },
              ThrowsMessage<InvalidArgument>(HasSubstr("precompiled_charsmap: expected leaves")));
  EXPECT_THROW(normalized(precompiled(good + "\xFF"), "A"), InvalidArgument);
  EXPECT_THROW(normalized(R"({"type": "Precompiled", "precompiled_charsmap": "AB*="})", "A"),
               InvalidArgument);
  const std::string long_one = character_map({{"A", std::string(1025, 'a')}});
  EXPECT_THROW(normalized(precompiled(long_one), "A"), InvalidArgument);
}

TEST(Nmt, DropsControlsAndMakesSpaces) {
  EXPECT_EQ(normalized(R"({"type": "Nmt"})", "\x01\u007F\ta\u200B\u2581\uFEFF\u00A0"),
            " a   \u00A0");
  EXPECT_EQ(normalized(R"({"type": "Nmt"})", std::string("\0a", 2)), std::string("\0a", 2));
}

TEST(StripAccents, DropsMarks) {
  EXPECT_EQ(normalized(R"({"type": "StripAccents"})", "e\u0301\u00E9\u0903\u1CF2"), "e\u00E9");
}

TEST(Replace, PutsNothingInFrontOfAContinuation) {
  const std::string prefix =
      R"j({"type": "Replace", "pattern": {"Regex": "\\A(?!\\z)"}, "content": "_"})j";
  EXPECT_EQ(normalized(prefix, "ab"), "_ab");
  EXPECT_EQ(normalized(prefix, ""), "");
  EXPECT_EQ(normalized(prefix, "ab", true), "ab");
}

std::vector<std::string> clusters(std::string_view text) {
  std::vector<std::string> parts;
  for (std::size_t at = 0, end = 0; at < text.size(); at = end) {
    end = grapheme_end(text, at);
    parts.emplace_back(text.substr(at, end - at));
  }
  return parts;
}

TEST(Graphemes, FollowUnicode) {
  EXPECT_THAT(clusters("a\u0301b"), ElementsAre("a\u0301", "b"));
  EXPECT_THAT(clusters("\r\n\n\u0301"), ElementsAre("\r\n", "\n", "\u0301"));
  EXPECT_THAT(clusters("\u1100\u1161\u11A8\u1100"), ElementsAre("\u1100\u1161\u11A8", "\u1100"));
  EXPECT_THAT(clusters("\U0001F1E6\U0001F1E7\U0001F1E8"),
              ElementsAre("\U0001F1E6\U0001F1E7", "\U0001F1E8"));
  EXPECT_THAT(clusters("\U0001F469\U0001F3FD\u200D\U0001F467\u200Da"),
              ElementsAre("\U0001F469\U0001F3FD\u200D\U0001F467\u200D", "a"));
  EXPECT_THAT(clusters("\u0915\u094D\u0937\u0937"), ElementsAre("\u0915\u094D\u0937", "\u0937"));
  EXPECT_THAT(clusters("\u0915\u094D\u200C\u0937"), ElementsAre("\u0915\u094D\u200C", "\u0937"));
  EXPECT_THAT(clusters("\u0600a\u0903"), ElementsAre("\u0600a\u0903"));
}

TEST(Base64, IsReadAndWritten) {
  for (const auto& [bytes, text] : {std::pair<std::string, std::string>{"", ""},
                                    {"f", "Zg=="},
                                    {"fo", "Zm8="},
                                    {"foo", "Zm9v"},
                                    {"\xFF\xFE", "//4="}}) {
    EXPECT_EQ(encode_base64(bytes), text);
    EXPECT_EQ(decode_base64(text), bytes);
  }
  for (const char* bad : {"Zg", "Zg=", "Zh==", "Z===", "Zm9=", "Z*==", "====", "Zg==Zg=="})
    EXPECT_EQ(decode_base64(bad), std::nullopt) << bad;
}

}  // namespace
}  // namespace anabatic::io::tokenizer
