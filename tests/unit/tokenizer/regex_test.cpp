// SPDX-License-Identifier: Apache-2.0
#include "io/tokenizer/regex.h"

#include <dlfcn.h>
#include <fmt/core.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <regex.h>

#include <functional>
#include <optional>
#include <random>

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

TEST(Regex, ClassesInBracketsDifferFromThoseOutside) {
  EXPECT_THAT(matches(R"([\w]+)", "a½b c²"), ElementsAre("a", "b", "c"));
  EXPECT_THAT(matches(R"(\w+)", "a½b c²"), ElementsAre("a½b", "c²"));
  EXPECT_THAT(matches(R"(\p{Word}+|[\p{Word}])", "½"), ElementsAre("½"));
  EXPECT_THAT(matches("[[:punct:]]+", "+-"), ElementsAre("+-"));
  EXPECT_THAT(matches(R"([\p{Punct}]+)", "+-"), ElementsAre("-"));
  EXPECT_THAT(matches("[[:alpha:]]+", "a\u0363\U00010D4A"), ElementsAre("a\u0363\U00010D4A"));
  EXPECT_THAT(matches(R"(\p{Kawi}+)", "a\U00011F04"), ElementsAre("\U00011F04"));
}

TEST(Regex, SeveralLettersFoldToOne) {
  EXPECT_THAT(matches("(?i:stra\u00dfe)", "STRASSE"), ElementsAre("STRASSE"));
  EXPECT_THAT(matches("(?i:ss)", "\u00df"), ElementsAre("\u00df"));
  EXPECT_THAT(matches("(?i:\u0264)", "\uA7CB"), ElementsAre("\uA7CB"));
}

TEST(Regex, KnownPatternsRunAsTables) {
  for (const char* pattern :
       {R"('s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+)",
        R"((?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}|\s*[\r\n]+)",
        R"([!-/:-~][A-Za-z]+|[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+| ?[\p{P}\p{S}]+[\r\n]*)",
        R"(\p{N}++|[^\s\p{L}]?+\p{L}++)"})
    EXPECT_TRUE(Regex(pattern, "here").has_automaton()) << pattern;
  for (const char* pattern : {R"(\bx)", R"((a)\1)", "a*+a", "(?i:ss)", "^a", "(a*)*", R"(\X)"})
    EXPECT_FALSE(Regex(pattern, "here").has_automaton()) << pattern;
}

// Patterns drawn from a grammar, most of which have a table, on texts of their characters.
TEST(Regex, TablesFindWhatOnigurumaFinds) {
  constexpr unsigned kSeed = 3;
  SCOPED_TRACE(fmt::format("seed {}", kSeed));
  std::mt19937 random(kSeed);
  const auto pick = [&](const std::vector<std::string>& parts) {
    return parts[random() % parts.size()];
  };
  const std::function<std::string(int)> draw = [&](int depth) -> std::string {
    switch (random() % (depth > 0 ? 9 : 5)) {
      case 0:
        return pick({"a", "b", "é", " ", "\\n"});
      case 1:
        return pick({"[ab]", "[^a]", "\\s", "\\S", "\\w", ".", "[\\w&&[^b]]", "\\p{L}"});
      case 2:
        return pick({"(?!\\S)", "(?=[ab])", "(?!a)", "(?i:a)", "(?i:bé)"});
      case 3:
      case 4:
        return pick({"a", "[ab]", "\\w", "\\s"}) +
               pick({"*", "+", "?", "*?", "+?", "??", "{2}", "{1,2}", "{,2}", "{1,}", "++", "?+"});
      case 5:
        return draw(depth - 1) + draw(depth - 1);
      case 6:
        return "(?:" + draw(depth - 1) + "|" + draw(depth - 1) + ")";
      case 7:
        return "(?:a" + draw(depth - 1) + ")" + pick({"*", "+", "?", "*?", "{1,2}", ""});
      default:
        return draw(depth - 1) + "|" + draw(depth - 1);
    }
  };
  int tables = 0;
  for (int round = 0; round < 400; ++round) {
    const std::string pattern = draw(3);
    std::optional<Regex> regex;
    try {
      regex.emplace(pattern, "here");
    } catch (const Unsupported&) {
      continue;  // repeats an item that matches no character
    }
    const Regex& fast = *regex;
    const Regex slow(pattern, "here", Regex::Engine::kOniguruma);
    tables += fast.has_automaton();
    for (int i = 0; i < 5; ++i) {
      std::string text;
      for (unsigned k = random() % 12; k > 0; --k) text += pick({"a", "b", "é", " ", "\n", "B"});
      RegexScratch scratch;
      MatchCursor got(fast, text, scratch), want(slow, text, scratch);
      Match ours, theirs;
      bool is_found = true;
      while (is_found) {
        is_found = want.next(theirs);
        ASSERT_EQ(got.next(ours), is_found) << pattern << " on '" << text << "'";
        if (!is_found) break;
        ASSERT_EQ(ours.begin, theirs.begin) << pattern << " on '" << text << "'";
        ASSERT_EQ(ours.end, theirs.end) << pattern << " on '" << text << "'";
      }
    }
  }
  EXPECT_GT(tables, 200);
}

TEST(Regex, NestedRepetitionsEndInAnError) {
  EXPECT_THAT([] { matches(R"((?:(a+)+)+\1b)", std::string(60, 'a')); },
              ThrowsMessage<Unsupported>(HasSubstr("retry-limit-in-match over")));
  EXPECT_TRUE(matches("(?:a+)+b", std::string(2000, 'a')).empty());
}

TEST(Regex, RefusesWhatItCannotCompile) {
  EXPECT_THAT([] { matches("(", ""); }, ThrowsMessage<Unsupported>(HasSubstr("here: the regular")));
  EXPECT_THAT([] { matches("[a", ""); },
              ThrowsMessage<Unsupported>(HasSubstr("premature end of char-class")));
  EXPECT_THAT([] { matches("\\p{Klingon}", ""); },
              ThrowsMessage<Unsupported>(HasSubstr("Klingon")));
  EXPECT_THAT([] { matches("a\\", ""); },
              ThrowsMessage<Unsupported>(HasSubstr("end pattern at escape")));
  EXPECT_THROW(matches(std::string(100, '['), ""), Unsupported);
}

// libonig exports POSIX names with structures of its own; whoever else is in the process means the
// C library's.
TEST(Regex, LeavesThePosixFunctionsToTheCLibrary) {
  Dl_info info{};
  ASSERT_NE(::dladdr(reinterpret_cast<void*>(&::regcomp), &info), 0);
  EXPECT_EQ(std::string(info.dli_fname).find("onig"), std::string::npos) << info.dli_fname;
}

}  // namespace
}  // namespace anabatic::io::tokenizer
