// SPDX-License-Identifier: Apache-2.0
#include "io/tokenizer/tokenizer.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <thread>

#include "anabatic/error.h"
#include "base/log.h"
#include "small_tokenizers.h"

namespace anabatic::io {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::ThrowsMessage;

Tokenizer with_added(const std::string& tokens, const std::string& normalizer = "null") {
  return Tokenizer::parse(document(
      {.added_tokens = "[" + tokens + "]", .normalizer = normalizer, .model = abc_model()}));
}

TEST(AddedTokens, AreFoundLongestFirst) {
  const Tokenizer tokenizer =
      with_added(added(7, "<x") + "," + added(8, "<x>y") + "," + added(9, "x>"));
  EXPECT_THAT(tokenizer.encode("a<x>yb<x>", false), ElementsAre(0, 8, 1, 7));
  EXPECT_THAT(tokenizer.encode("ax>ab", false), ElementsAre(0, 9, 3));
}

TEST(AddedTokens, TakeTheIdOfTheModelOrTheNextFree) {
  const Tokenizer tokenizer = with_added(added(0, "a") + "," + added(7, "<x>", "special"));
  EXPECT_THAT(tokenizer.encode("ab<x>", false), ElementsAre(0, 1, 7));
  EXPECT_EQ(tokenizer.vocabulary_size(), 8);
  EXPECT_EQ(tokenizer.token_to_id("<x>"), 7);
  EXPECT_EQ(tokenizer.token_to_id("abc"), 4);
  EXPECT_EQ(tokenizer.token_to_id("nothing"), std::nullopt);
  EXPECT_EQ(tokenizer.id_to_token(7), "<x>");
  EXPECT_EQ(tokenizer.id_to_token(99), "");
  EXPECT_TRUE(tokenizer.is_special(7));
  EXPECT_FALSE(tokenizer.is_special(0));
}

TEST(AddedTokens, StripTheWhiteSpaceBesideThem) {
  EXPECT_THAT(with_added(added(7, "X", "lstrip")).encode("a  X b", false), ElementsAre(0, 7, 6, 1));
  EXPECT_THAT(with_added(added(7, "X", "rstrip")).encode("a X  b", false), ElementsAre(0, 6, 7, 1));
}

TEST(AddedTokens, SingleWordsNeedBoundaries) {
  const Tokenizer tokenizer = with_added(added(7, "bb", "single_word"));
  EXPECT_THAT(tokenizer.encode("bb abb bb", false), ElementsAre(7, 6, 3, 1, 6, 7));
}

TEST(AddedTokens, AreMatchedBeforeOrAfterNormalisation) {
  const std::string lower = R"({"type": "Lowercase"})";
  EXPECT_THAT(with_added(added(7, "AB"), lower).encode("ab AB", false), ElementsAre(3, 6, 7));
  EXPECT_THAT(with_added(added(7, "AB", "normalized"), lower).encode("abAB", false),
              ElementsAre(7, 7));
}

TEST(AddedTokens, AreMatchedOnlyWhereTheyMayBe) {
  const Tokenizer tokenizer = with_added(added(7, "<x>", "special") + "," + added(8, "<t>"));
  const std::string text = "a<x>b<t>";
  using enum AddedTokenMatch;
  const auto ids_of = [&](std::vector<AddedTokenRange> ranges) {
    return tokenizer.encode_with_begins(text, ranges).ids;
  };
  EXPECT_THAT(ids_of({}), ElementsAre(0, 7, 1, 8));
  EXPECT_THAT(ids_of({{8, kAll}}), ElementsAre(0, 7, 1, 8));
  EXPECT_THAT(ids_of({{8, kNotSpecial}}), ElementsAre(3, 8));
  EXPECT_THAT(ids_of({{8, kNone}}), ElementsAre(3));
  EXPECT_THAT(ids_of({{2, kAll}, {6, kNotSpecial}, {8, kAll}}), ElementsAre(3, 8));
  EXPECT_THAT(ids_of({{4, kAll}, {6, kNotSpecial}, {8, kNone}}), ElementsAre(0, 7, 1));
}

TEST(Tokenizer, TellsWhereTokensBegin) {
  const auto begins_of = [](const Tokenizer& tokenizer, std::string_view text) {
    return tokenizer.encode_with_begins(text).begins;
  };
  const std::string token = added(7, "<x>", "special");
  EXPECT_THAT(begins_of(with_added(token), "ab<x>c"), ElementsAre(0, 2, 5));
  // Characters without a token, which vanish.
  EXPECT_THAT(begins_of(with_added(token), "cé!b<x>"), ElementsAre(0, 4, 5));
  EXPECT_THAT(begins_of(with_added(token, R"({"type": "Lowercase"})"), "aBc AB<x>a"),
              ElementsAre(0, 3, 4, 6, 9));
  EXPECT_THAT(begins_of(with_added(token, R"({"type": "Prepend", "prepend": " "})"), "ab<x>b"),
              ElementsAre(0, 0, 2, 5, 5));
}

TEST(PostProcessor, PutsSpecialTokensAroundTheText) {
  const std::string single = R"({"type": "TemplateProcessing", "single": [
      {"SpecialToken": {"id": "B", "type_id": 0}}, {"Sequence": {"id": "A", "type_id": 0}},
      {"SpecialToken": {"id": "E", "type_id": 0}}], "pair": [], "special_tokens": {
      "B": {"id": "B", "ids": [5, 6], "tokens": ["x", "y"]},
      "E": {"id": "E", "ids": [2], "tokens": ["z"]}}})";
  const Tokenizer tokenizer =
      Tokenizer::parse(document({.post_processor = single, .model = abc_model()}));
  EXPECT_THAT(tokenizer.encode("a", true), ElementsAre(5, 6, 0, 2));
  EXPECT_THAT(tokenizer.encode("a", false), ElementsAre(0));
  const std::string nested =
      R"({"type": "Sequence", "processors": [)" + single +
      R"(, {"type": "RobertaProcessing", "sep": ["</s>", 1], "cls": ["<s>", 3]}]})";
  EXPECT_THAT(Tokenizer::parse(document({.post_processor = nested, .model = abc_model()}))
                  .encode("a", true),
              ElementsAre(3, 5, 6, 0, 2, 1));
}

TEST(Tokenizer, RefusesBrokenUtf8) {
  const Tokenizer tokenizer = Tokenizer::parse(document({.model = abc_model()}));
  EXPECT_THAT([&] { tokenizer.encode("ab\xFF", false); },
              ThrowsMessage<InvalidArgument>(HasSubstr("0xFF at offset 2")));
}

TEST(Tokenizer, ContinuesATextThatWasCut) {
  const Tokenizer tokenizer = Tokenizer::parse(
      document({.normalizer = R"({"type": "Prepend", "prepend": " "})", .model = abc_model()}));
  EXPECT_THAT(tokenizer.encode("abc", true), ElementsAre(6, 4));
  std::vector<std::int32_t> ids = tokenizer.encode("ab", false);
  tokenizer.encode_continuation("c", ids);
  EXPECT_THAT(ids, ElementsAre(6, 3, 2));
}

TEST(Tokenizer, GivesTheSameIdsOnManyThreads) {
  const Tokenizer tokenizer = Tokenizer::parse(
      document({.pre_tokenizer = R"({"type": "WhitespaceSplit"})", .model = abc_model()}));
  std::string text;
  for (int i = 0; i < 20000; ++i)
    text += std::string("abc").substr(0, 1 + i % 3) + (i % 7 ? " " : "ab ");
  const auto want = tokenizer.encode(text, false);
  std::vector<std::vector<std::int32_t>> got(4);
  std::vector<std::thread> team;
  for (auto& ids : got) team.emplace_back([&] { tokenizer.encode_append(text, false, ids); });
  for (auto& thread : team) thread.join();
  for (const auto& ids : got) EXPECT_EQ(ids, want);
}

TEST(Tokenizer, LoadsAFolderOrItsFile) {
  const auto folder = std::filesystem::temp_directory_path() / "anabatic_tokenizer_test";
  std::filesystem::create_directories(folder);
  std::ofstream(folder / "tokenizer.json")
      << document({.added_tokens = "[" + added(7, "</s>", "special") + "]", .model = abc_model()});
  EXPECT_THAT(Tokenizer::load(folder).encode("ab</s>", false), ElementsAre(3, 7));
  EXPECT_THAT(Tokenizer::load(folder / "tokenizer.json").encode("abc", false), ElementsAre(4));
  std::filesystem::remove_all(folder);
  EXPECT_THROW(Tokenizer::load(folder), ResourceError);
}

TEST(Tokenizer, NamesThePlaceOfWhatIsWrong) {
  const auto parse = [](const std::string& json) {
    return [json] { Tokenizer::parse(json, "t.json"); };
  };
  EXPECT_THAT(parse("{"), ThrowsMessage<InvalidArgument>(HasSubstr("t.json: expected JSON")));
  EXPECT_THAT(parse("[]"), ThrowsMessage<InvalidArgument>(HasSubstr("t.json: expected an object")));
  EXPECT_THAT(parse("{}"), ThrowsMessage<InvalidArgument>(HasSubstr("expected a field `model`")));
  EXPECT_THAT(parse(document({.decoder = R"({"type": "CTC"})", .model = abc_model()})),
              ThrowsMessage<Unsupported>(HasSubstr("t.json: decoder: the decoder `CTC`")));
  EXPECT_THAT(
      parse(document({.post_processor = R"({"type": "BertProcessing", "cls": ["x", 77],
                                                   "sep": ["y", 0]})",
                      .model = abc_model()})),
      ThrowsMessage<InvalidArgument>(HasSubstr("post_processor: expected ids of tokens, not 77")));
  EXPECT_THAT(parse(document({.added_tokens = R"([{"id": 7}])", .model = abc_model()})),
              ThrowsMessage<InvalidArgument>(HasSubstr(
                  "[tokenizer] t.json: added_tokens[0]: expected a field `content`, got none")));
}

std::string warnings_of(const Parts& parts) {
  std::string said;
  const LogScope scope([&](Severity, const std::string& text) { said += text + '\n'; });
  (void)Tokenizer::parse(document(parts), "t.json");
  return said;
}

TEST(Fields, ThatNothingReadsAreNamed) {
  EXPECT_EQ(warnings_of({.model = abc_model()}), "");
  EXPECT_EQ(warnings_of({.added_tokens = R"([{"id": 7, "content": "x", "single_word": false,
                             "lstrip": false, "rstrip": false, "normalized": false,
                             "special": false, "colour": 1}])",
                         .normalizer = R"({"type": "Sequence", "normalizers": [
                             {"type": "Lowercase", "locale": "tr"}]})",
                         .decoder = R"({"type": "Fuse", "content": "y"})",
                         .model = abc_model(R"(, "max_input_chars_per_word": 100)")}),
            "[tokenizer] t.json: model.max_input_chars_per_word, added_tokens[0].colour, "
            "normalizer.normalizers[0].locale, decoder.content: unknown field, has no effect\n");
}

}  // namespace
}  // namespace anabatic::io
