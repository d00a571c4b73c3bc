// SPDX-License-Identifier: Apache-2.0
// What is matched by hand is what libonig finds for the same patterns.
#include <gtest/gtest.h>

#include <vector>

#include "base/json.h"
#include "base/philox.h"
#include "io/tokenizer/pre_tokenizer.h"
#include "io/tokenizer/regex.h"

namespace anabatic::io::tokenizer {
namespace {

constexpr std::string_view kMarks[] = {kSpaceMark, " "};

std::string drawn_text(std::uint64_t round) {
  static constexpr std::string_view kParts[] = {" ", " ", kSpaceMark, "a", "\u00E9", "\n"};
  std::string text;
  std::uint64_t draw = 0;
  const auto below = [&](std::uint64_t bound) { return random_below(7, round, draw++, bound); };
  for (std::uint64_t left = below(9); left > 0; --left) text += kParts[below(std::size(kParts))];
  return text;
}

std::vector<Match> matches_of(const std::string& pattern, std::string_view text) {
  const Regex regex(pattern, "test", Regex::Engine::kOniguruma);
  RegexScratch scratch;
  MatchCursor cursor(regex, text, scratch);
  std::vector<Match> matches;
  for (Match match; cursor.next(match);) matches.push_back(match);
  return matches;
}

TEST(SpacePatterns, ExtraSpacesGoAsThePatternSays) {
  int num_changed = 0;
  for (std::uint64_t round = 0; round < 3000; ++round)
    for (const std::string_view mark : kMarks) {
      const std::string text = drawn_text(round);
      std::string expected, result;
      std::size_t copied = 0;
      const std::vector<Match> matches = matches_of(extra_spaces_pattern(mark), text);
      for (const Match& match : matches) {
        expected += text.substr(copied, match.begin - copied);
        copied = match.end;
      }
      expected += text.substr(copied);
      const bool keeps_start = append_without_extra_spaces(text, mark, result);
      EXPECT_EQ(result, expected) << '"' << text << '"';
      EXPECT_EQ(keeps_start, matches.empty() || matches.front().begin > 0) << '"' << text << '"';
      num_changed += result != text ? 1 : 0;
    }
  EXPECT_GT(num_changed, 1000);
}

TEST(SpacePatterns, WordsAreCutAsThePatternSays) {
  for (const std::string_view mark : kMarks)
    for (const char* behavior : {"Isolated", "Removed", "MergedWithNext"})
      for (const bool is_inverted : {false, true}) {
        const auto stages_of = [&](const std::string& pattern) {
          return Json{{"type", "Split"},
                      {"pattern", {{"Regex", pattern}}},
                      {"behavior", behavior},
                      {"invert", is_inverted}};
        };
        // A group changes no match, and is another pattern.
        const Json by_hand = stages_of(words_pattern(mark)),
                   by_regex = stages_of("(?:" + words_pattern(mark) + ")");
        const PreTokenizers fast(JsonNode(by_hand, "", "")), slow(JsonNode(by_regex, "", ""));
        CutScratch scratch;
        for (std::uint64_t round = 0; round < 300; ++round) {
          const std::string text = drawn_text(round);
          std::vector<std::string> words, expected;
          fast.cut({text}, scratch, [&](std::string_view word) { words.emplace_back(word); });
          slow.cut({text}, scratch, [&](std::string_view word) { expected.emplace_back(word); });
          EXPECT_EQ(words, expected) << '"' << text << "\" " << behavior;
        }
      }
}

TEST(SpacePatterns, OtherPatternsAreLeftAlone) {
  EXPECT_EQ(mark_of_extra_spaces(extra_spaces_pattern(kSpaceMark)), kSpaceMark);
  EXPECT_EQ(mark_of_words(words_pattern(" ")), " ");
  EXPECT_FALSE(mark_of_words(" {2,}"));
  EXPECT_FALSE(mark_of_extra_spaces(words_pattern(" ")));
}

}  // namespace
}  // namespace anabatic::io::tokenizer
