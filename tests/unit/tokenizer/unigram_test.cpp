// SPDX-License-Identifier: Apache-2.0
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <map>
#include <random>

#include "anabatic/error.h"
#include "io/tokenizer/prefix_trie.h"
#include "io/tokenizer/tokenizer.h"
#include "small_tokenizers.h"

namespace anabatic::io {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::ThrowsMessage;

Tokenizer unigram(std::string_view vocab, std::string_view more = R"(, "unk_id": 0)") {
  return Tokenizer::parse(
      document({.model = fmt::format(R"({{"type": "Unigram", "vocab": [{}]{}}})", vocab, more)}));
}

constexpr std::string_view kVocab =
    R"(["<unk>", 0], ["a", -2.0], ["b", -3], ["ab", -4.5], ["abb", -9.0], ["<0x78>", -1],
       ["ba", -4.5])";

TEST(Unigram, TakesTheBestSum) {
  const Tokenizer tokenizer = unigram(kVocab);
  EXPECT_THAT(tokenizer.encode("ab", false), ElementsAre(3));
  EXPECT_THAT(tokenizer.encode("abb", false), ElementsAre(3, 2));  // -7.5, not -9
  EXPECT_THAT(tokenizer.encode("bb", false), ElementsAre(2, 2));
  // Equal sums: the first that was found stays.
  EXPECT_THAT(tokenizer.encode("aba", false), ElementsAre(1, 6));
  EXPECT_EQ(tokenizer.vocabulary_size(), 7);
  EXPECT_EQ(tokenizer.token_to_id("abb"), 4);
}

TEST(Unigram, FusesUnknownCharacters) {
  EXPECT_THAT(unigram(kVocab).encode("xya\u00E9\u00E9b", false), ElementsAre(0, 1, 0, 2));
}

TEST(Unigram, FallsBackToBytesIfAllAreThere) {
  const Tokenizer tokenizer = unigram(kVocab, R"(, "unk_id": 0, "byte_fallback": true)");
  EXPECT_THAT(tokenizer.encode("xx", false), ElementsAre(5, 5));
  EXPECT_THAT(tokenizer.encode("xy", false), ElementsAre(0));  // fused: y has no byte
  EXPECT_THAT(tokenizer.encode("xay", false), ElementsAre(5, 1, 0));
}

TEST(Unigram, RefusesWhatItCannotRead) {
  EXPECT_THAT([] { unigram(kVocab, "").encode("x", false); },
              ThrowsMessage<InvalidArgument>(HasSubstr("model: expected an unk_id")));
  EXPECT_THAT([] { unigram(kVocab, R"(, "unk_id": 7)"); },
              ThrowsMessage<InvalidArgument>(HasSubstr("model.unk_id")));
  EXPECT_THAT([] { unigram(R"(["a", 1], ["b"])"); },
              ThrowsMessage<InvalidArgument>(HasSubstr("model.vocab[1]: expected a token and")));
  EXPECT_THROW(unigram("", R"(, "unk_id": 0)"), InvalidArgument);
}

TEST(PrefixTrie, FindsWhatAMapFinds) {
  std::mt19937 random(3);
  const auto word = [&] {
    std::string text(random() % 6, '\0');
    for (char& c : text) c = static_cast<char>(random() % 3 == 0 ? random() : 'a' + random() % 2);
    return text;
  };
  for (int round = 0; round < 50; ++round) {
    std::map<std::string, std::int32_t> words;
    for (int i = 0; i < round * 10; ++i) words[word()] = i;
    std::vector<tokenizer::PrefixTrie::Word> list(words.begin(), words.end());
    const tokenizer::PrefixTrie trie(list);
    for (int i = 0; i < 50; ++i) {
      const std::string text = word() + word();
      std::vector<std::int32_t> got, want;
      trie.find_prefixes(text, [&](std::size_t size, std::int32_t value) {
        EXPECT_EQ(words.at(text.substr(0, size)), value);
        got.push_back(value);
      });
      for (std::size_t size = 1; size <= text.size(); ++size)
        if (const auto found = words.find(text.substr(0, size)); found != words.end())
          want.push_back(found->second);
      EXPECT_EQ(got, want);
    }
  }
}

}  // namespace
}  // namespace anabatic::io
