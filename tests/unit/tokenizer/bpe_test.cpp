// SPDX-License-Identifier: Apache-2.0
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <array>
#include <random>

#include "anabatic/error.h"
#include "io/tokenizer/merge.h"
#include "io/tokenizer/tokenizer.h"
#include "small_tokenizers.h"

namespace anabatic::io {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::ThrowsMessage;

TEST(Bpe, AppliesMergesByRankFromTheLeft) {
  const Tokenizer tokenizer = Tokenizer::parse(document({.model = abc_model()}));
  EXPECT_THAT(tokenizer.encode("abc", false), ElementsAre(4));
  EXPECT_THAT(tokenizer.encode("bcabab", false), ElementsAre(5, 3, 3));
  EXPECT_THAT(tokenizer.encode("abbc", false), ElementsAre(3, 5));
  EXPECT_THAT(tokenizer.encode("", false), ElementsAre());
}

TEST(Bpe, TakesALaterMergeOfTheSamePair) {
  const std::string vocab = R"({"a": 0, "b": 1, "ab": 2, "ba": 3})";
  const Tokenizer first = Tokenizer::parse(document({.model = bpe(vocab, R"(["a b", "b a"])")}));
  const Tokenizer last =
      Tokenizer::parse(document({.model = bpe(vocab, R"(["a b", "b a", "a b"])")}));
  EXPECT_THAT(first.encode("aba", false), ElementsAre(2, 0));
  EXPECT_THAT(last.encode("aba", false), ElementsAre(0, 3));
}

TEST(Bpe, LeavesUnknownCharactersOutWithoutAnUnknownToken) {
  const Tokenizer tokenizer = Tokenizer::parse(document({.model = abc_model()}));
  EXPECT_THAT(tokenizer.encode("xaxb", false), ElementsAre(3));
}

TEST(Bpe, FusesUnknownTokensOnlyIfAsked) {
  const std::string vocab = R"({"a": 0, "?": 1})";
  const Tokenizer apart =
      Tokenizer::parse(document({.model = bpe(vocab, "[]", R"(, "unk_token": "?")")}));
  const Tokenizer fused = Tokenizer::parse(
      document({.model = bpe(vocab, "[]", R"(, "unk_token": "?", "fuse_unk": true)")}));
  EXPECT_THAT(apart.encode("axya", false), ElementsAre(0, 1, 1, 0));
  EXPECT_THAT(fused.encode("axya", false), ElementsAre(0, 1, 0));
}

TEST(Bpe, FallsBackToBytesOnlyIfAllAreThere) {
  const Tokenizer tokenizer =
      Tokenizer::parse(document({.model = bpe(R"({"?": 0, "<0xC3>": 1, "<0xA9>": 2})", "[]",
                                              R"(, "unk_token": "?", "byte_fallback": true)")}));
  EXPECT_THAT(tokenizer.encode("é", false), ElementsAre(1, 2));
  EXPECT_THAT(tokenizer.encode("è", false), ElementsAre(0));
}

TEST(Bpe, IgnoreMergesTakesWholeWordsOfTheVocabulary) {
  const std::string vocab = R"({"a": 0, "b": 1, "ba": 2})";
  const Tokenizer merging = Tokenizer::parse(document({.model = bpe(vocab, "[]")}));
  const Tokenizer ignoring =
      Tokenizer::parse(document({.model = bpe(vocab, "[]", R"(, "ignore_merges": true)")}));
  EXPECT_THAT(merging.encode("ba", false), ElementsAre(1, 0));
  EXPECT_THAT(ignoring.encode("ba", false), ElementsAre(2));
  EXPECT_THAT(ignoring.encode("bab", false), ElementsAre(1, 0, 1));
}

TEST(Bpe, NamesWhatIsWrongInTheModel) {
  const auto parse = [](const std::string& model) {
    return [model] { Tokenizer::parse(document({.model = model})); };
  };
  EXPECT_THAT(parse(bpe(R"({"a": 0})", R"(["a b"])")),
              ThrowsMessage<InvalidArgument>(HasSubstr("model.merges[0]: expected tokens of the "
                                                       "vocabulary, got `b`")));
  EXPECT_THAT(parse(bpe(R"({"a": 0})", R"(["a"])")),
              ThrowsMessage<InvalidArgument>(HasSubstr("model.merges[0]: expected two tokens")));
  EXPECT_THAT(parse(bpe(R"({"a": 2147483648})", "[]")),
              ThrowsMessage<InvalidArgument>(
                  HasSubstr("model.vocab.a: expected an id from 0 to 65539, got 2147483648")));
  EXPECT_THAT(parse(bpe(R"({"a": -1})", "[]")),
              ThrowsMessage<InvalidArgument>(HasSubstr("model.vocab.a: expected an id")));
  EXPECT_THAT(parse(bpe(R"({"a": 1, "b": 1})", "[]")),
              ThrowsMessage<InvalidArgument>(HasSubstr("expected distinct ids, got 1 for both")));
  EXPECT_THAT(parse(bpe(R"({"a": 0})", "[]", R"(, "dropout": 0.1)")),
              ThrowsMessage<Unsupported>(HasSubstr("model.dropout")));
  EXPECT_THAT(parse(R"({"type": "WordPiece", "vocab": {}})"),
              ThrowsMessage<Unsupported>(HasSubstr("the model `WordPiece`")));
}

// The row of symbols merged pair by pair in the plainest way.
std::vector<std::int32_t> merge_naively(const tokenizer::MergeTable& merges,
                                        std::vector<std::int32_t> row) {
  for (;;) {
    const tokenizer::Merge* best = nullptr;
    std::size_t place = 0;
    for (std::size_t i = 0; i + 1 < row.size(); ++i) {
      const tokenizer::Merge* merge = merges.find(row[i], row[i + 1]);
      if (merge && (!best || merge->rank < best->rank)) {
        best = merge;
        place = i;
      }
    }
    if (!best) return row;
    row[place] = best->id;
    row.erase(row.begin() + static_cast<std::ptrdiff_t>(place) + 1);
  }
}

TEST(ApplyMerges, EqualsTheNaiveWayForShortAndLongRows) {
  std::mt19937 random(7);
  for (int round = 0; round < 200; ++round) {
    // Symbols 0..3 and up to 30 merges of what is there; every pair makes a token of its own.
    tokenizer::MergeTable merges;
    std::int32_t next = 4;
    for (std::uint32_t rank = 0; rank < 30; ++rank) {
      const auto left = static_cast<std::int32_t>(random() % static_cast<unsigned>(next));
      const auto right = static_cast<std::int32_t>(random() % static_cast<unsigned>(next));
      if (!merges.find(left, right)) merges.set(left, right, {.rank = rank, .id = next++});
    }
    std::vector<std::int32_t> row(random() % 200);
    for (auto& symbol : row) symbol = static_cast<std::int32_t>(random() % 4);
    tokenizer::MergeScratch scratch;
    std::vector<std::int32_t> ids;
    tokenizer::apply_merges(merges, row, scratch, ids);
    EXPECT_EQ(ids, merge_naively(merges, row)) << "round " << round;
  }
}

// One word of two megabytes: quadratic work would take hours.
TEST(Bpe, EncodesAHugeWord) {
  const Tokenizer tokenizer = Tokenizer::parse(document({.model = abc_model()}));
  std::string word;
  for (int i = 0; i < 500'000; ++i) word += "abca";
  const auto ids = tokenizer.encode(word, false);
  ASSERT_EQ(ids.size(), 1'000'000u);
  EXPECT_EQ(ids[0], 4);
  EXPECT_EQ(ids[1], 0);
}

// Words beyond the size of the cache's keys are cut where no merge can reach across; the ids must
// be those of the same text in one piece.
TEST(Bpe, CutsLongWordsWithoutChangingIds) {
  const std::string vocab =
      R"({"_": 0, "a": 1, "b": 2, "_a": 3, "ab": 4, "_ab": 5, "ba": 6, "__": 7, "c": 8})";
  const std::string merges = R"(["a b", "_ a", "_ ab", "b a", "_ _"])";
  const Tokenizer tokenizer = Tokenizer::parse(document({.model = bpe(vocab, merges)}));
  tokenizer::MergeTable table;
  table.set(1, 2, {0, 4});
  table.set(0, 1, {1, 3});
  table.set(0, 4, {2, 5});
  table.set(2, 1, {3, 6});
  table.set(0, 0, {4, 7});
  std::mt19937 random(3);
  for (int round = 0; round < 50; ++round) {
    std::string text;
    std::vector<std::int32_t> symbols;
    for (int i = 0; i < 400; ++i) {
      const std::size_t pick = random() % 4;
      text += "_abc"[pick];
      symbols.push_back(std::array{0, 1, 2, 8}[pick]);
    }
    EXPECT_EQ(tokenizer.encode(text, false), merge_naively(table, symbols)) << text;
  }
}

}  // namespace
}  // namespace anabatic::io
