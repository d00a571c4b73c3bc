// SPDX-License-Identifier: Apache-2.0
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "anabatic/error.h"
#include "io/tokenizer/tokenizer.h"
#include "small_tokenizers.h"

namespace anabatic::io {
namespace {

using Ids = std::vector<std::int32_t>;

constexpr const char* kLlamaDecoder = R"({"type": "Sequence", "decoders": [
    {"type": "Replace", "pattern": {"String": "▁"}, "content": " "}, {"type": "ByteFallback"},
    {"type": "Fuse"}, {"type": "Strip", "content": " ", "start": 1, "stop": 0}]})";

Tokenizer llama() {
  return Tokenizer::parse(document(
      {.added_tokens = "[" + added(0, "<s>", "special") + "]",
       .decoder = kLlamaDecoder,
       .model = bpe(R"({"<s>": 0, "▁hi": 1, "<0xF0>": 2, "<0x9F>": 3, "<0x98>": 4, "<0x80>": 5,
                        "▁": 6, "a": 7})",
                    "[]")}));
}

TEST(Decoder, LlamaJoinsBytesAndDropsTheFirstSpace) {
  const Tokenizer tokenizer = llama();
  EXPECT_EQ(tokenizer.decode(Ids{1, 1, 2, 3, 4, 5}, true), "hi hi😀");
  EXPECT_EQ(tokenizer.decode(Ids{0, 1}, true), "hi");
  EXPECT_EQ(tokenizer.decode(Ids{0, 1}, false), "<s> hi");
  EXPECT_EQ(tokenizer.decode(Ids{7, 2, 3, 7}, true), "a\uFFFD\uFFFDa");
  EXPECT_EQ(tokenizer.decode(Ids{7, 99, -1, 7}, true), "aa");
}

TEST(Decoder, MetaspaceKeepsAllButTheFirst) {
  const auto tokenizer = [](const std::string& scheme) {
    return Tokenizer::parse(
        document({.decoder = R"({"type": "Metaspace", "replacement": "▁", "prepend_scheme": ")" +
                             scheme + "\"}",
                  .model = bpe(R"({"▁a": 0})", "[]")}));
  };
  EXPECT_EQ(tokenizer("always").decode(Ids{0, 0}, false), "a a");
  EXPECT_EQ(tokenizer("never").decode(Ids{0, 0}, false), " a a");
}

TEST(Decoder, ByteLevelTakesTokensOutsideTheAlphabetAsTheyAre) {
  const Tokenizer tokenizer =
      Tokenizer::parse(document({.decoder = R"({"type": "ByteLevel"})",
                                 .model = bpe(R"({"Ã": 0, "©": 1, "Ġx": 2, "a b": 3})", "[]")}));
  EXPECT_EQ(tokenizer.decode(Ids{0, 1, 2, 3}, false), "é xa b");
  EXPECT_EQ(tokenizer.decode(Ids{0, 2}, false), "\uFFFD x");
}

TEST(Decoder, WithoutOneTokensStandApart) {
  const Tokenizer tokenizer = Tokenizer::parse(document({.model = abc_model()}));
  EXPECT_EQ(tokenizer.decode(Ids{0, 4}, false), "a abc");
}

std::vector<std::string> stream(const Tokenizer& tokenizer, const Ids& ids) {
  TokenStream tokens(tokenizer, true);
  std::vector<std::string> parts;
  for (const auto id : ids) parts.push_back(tokens.push(id));
  parts.push_back(tokens.finish());
  return parts;
}

TEST(TokenStream, EmitsOnlyWholeCharacters) {
  EXPECT_THAT(stream(llama(), {0, 1, 1, 2, 3, 4, 5, 7}),
              ::testing::ElementsAre("", "hi", " hi", "", "", "", "😀", "a", ""));
}

TEST(TokenStream, FinishGivesWhatIsLeft) {
  EXPECT_THAT(stream(llama(), {7, 2, 3}), ::testing::ElementsAre("a", "", "", "\uFFFD\uFFFD"));
}

TEST(TokenStream, DoesNotWaitForEverOnIllFormedBytes) {
  const Ids ids(1000, 2);
  std::size_t longest = 0, total = 0;
  for (const std::string& part : stream(llama(), ids)) {
    longest = std::max(longest, part.size());
    total += part.size();
  }
  EXPECT_LE(longest, 30u);
  EXPECT_EQ(total, 3000u);
}

}  // namespace
}  // namespace anabatic::io
