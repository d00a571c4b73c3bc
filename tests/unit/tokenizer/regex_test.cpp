// SPDX-License-Identifier: Apache-2.0
#include "io/tokenizer/regex.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "anabatic/error.h"

namespace anabatic::io::tokenizer {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::ThrowsMessage;

std::vector<std::string> matches(std::string_view pattern, std::string_view text) {
  const Regex regex(pattern, "here");
  RegexScratch scratch;
  MatchCursor cursor(regex, text, scratch);
  std::vector<std::string> result;
  for (Match match; cursor.next(match);)
    result.emplace_back(text.substr(match.begin, match.end - match.begin));
  return result;
}

TEST(Regex, ClassesAreThoseOfOniguruma) {
  EXPECT_THAT(matches(R"(\w+)", "é\u0301²_Ⅷ-①"), ElementsAre("é\u0301²_Ⅷ"));
  EXPECT_THAT(matches(R"(\s)", "\u180e\u0085\u3000"), ElementsAre("\u0085", "\u3000"));
  EXPECT_THAT(matches(R"(\h+)", "xBEEF "), ElementsAre("BEEF"));
  EXPECT_THAT(matches("[[:punct:]]+", "a$-\u20ac"), ElementsAre("$-\u20ac"));
  EXPECT_THAT(matches(R"(\p{Han}+)", "中\u30fc"), ElementsAre("中"));
}

TEST(Regex, ClassesNestAndIntersect) {
  EXPECT_THAT(matches("[a-z&&[^aeiou]]+", "hello"), ElementsAre("h", "ll"));
  EXPECT_THAT(matches("[^a-z&&[^aeiou]]+", "hello!"), ElementsAre("e", "o!"));
  EXPECT_THAT(matches("[x[ab]]+", "xaby"), ElementsAre("xab"));
  EXPECT_THAT(matches(R"([^\w\s[!]]+)", "a!-?"), ElementsAre("-?"));
  EXPECT_THAT(matches("[]^]+", "]^x"), ElementsAre("]^"));
}

TEST(Regex, RepetitionsAreRubys) {
  EXPECT_THAT(matches(R"(\d{1,3}+)", "12345"), ElementsAre("12345"));
  EXPECT_THAT(matches("(?:ab){2}?x", "abababx"), ElementsAre("ababx"));
  EXPECT_THAT(matches("a{,2}b", "aaab"), ElementsAre("aab"));
  EXPECT_THAT(matches("a{b", "a{b"), ElementsAre("a{b"));
}

TEST(Regex, LinesAndOptionsAreRubys) {
  EXPECT_THAT(matches("^b$", "a\nb\nc"), ElementsAre("b"));
  EXPECT_THAT(matches("(?m:a.b)|c.d", "a\nb c\nd"), ElementsAre("a\nb"));
  EXPECT_THAT(matches("(?i:'s)", "'S'ſ"), ElementsAre("'S", "'ſ"));
}

TEST(Regex, EmptyMatchesBehindAMatchAreLeftOut) {
  EXPECT_THAT(matches("a*", "baa"), ElementsAre("", "aa"));
}

TEST(Regex, KnowsCharactersOfUnicode16) {
  EXPECT_THAT(matches(R"(\p{So}+)", "\U0001FAE9\U0001FAE8!"), ElementsAre("\U0001FAE9\U0001FAE8"));
  EXPECT_THAT(matches(R"(\p{Han}+)", "\U000323AF"), ElementsAre("\U000323AF"));
}

TEST(Regex, RefusesWhatItCannotCompile) {
  EXPECT_THAT([] { matches("(", ""); }, ThrowsMessage<Unsupported>(HasSubstr("here: the regular")));
  EXPECT_THAT([] { matches("[a", ""); }, ThrowsMessage<Unsupported>(HasSubstr("unclosed")));
  EXPECT_THAT([] { matches("\\p{Klingon}", ""); },
              ThrowsMessage<Unsupported>(HasSubstr("Klingon")));
  EXPECT_THAT([] { matches("a\\", ""); }, ThrowsMessage<Unsupported>(HasSubstr("lone")));
  EXPECT_THROW(matches(std::string(100, '['), ""), Unsupported);
}

}  // namespace
}  // namespace anabatic::io::tokenizer
