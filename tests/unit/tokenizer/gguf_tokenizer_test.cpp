// SPDX-License-Identifier: Apache-2.0
// tokenizer.ggml.*, written from a tokenizer.json and read back without it.
#include "io/tokenizer/gguf/gguf_tokenizer.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "anabatic/error.h"
#include "base/json.h"
#include "base/text.h"
#include "io/tokenizer/gguf/gguf_pre.h"
#include "io/tokenizer/tokenizer.h"
#include "io/tokenizer/tokenizer_file.h"
#include "small_tokenizers.h"
#include "unit/io/test_files.h"

namespace anabatic::io {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::ThrowsMessage;

// The byte-level symbols of a space and some letters.
const char* const kVocab =
    R"({"a": 0, "b": 1, "1": 2, "2": 3, "Ġ": 4, "ab": 5, "Ġab": 6, "12": 7, "!": 8})";
const char* const kMerges = R"(["a b", "Ġ ab", "1 2"])";
const char* const kSmollm = R"({"type": "Sequence", "pretokenizers": [
    {"type": "Digits", "individual_digits": true},
    {"type": "ByteLevel", "add_prefix_space": false, "trim_offsets": true, "use_regex": true}]})";
const char* const kGpt2 =
    R"({"type": "ByteLevel", "add_prefix_space": false, "trim_offsets": true, "use_regex": true})";

std::string byte_level(const std::string& pre_tokenizer, const std::string& more = "") {
  return document({.added_tokens = "[" + added(9, "<s>", "special") + ", " + added(10, "<x>") + "]",
                   .pre_tokenizer = pre_tokenizer,
                   .decoder = R"({"type": "ByteLevel"})",
                   .model = bpe(kVocab, kMerges, more)});
}

std::string sentencepiece(const std::string& merges) {
  std::string vocab = R"("<unk>": 0, "<s>": 1, "</s>": 2, "▁": 3, "a": 4, "b": 5, "▁a": 6,
                         "ab": 7, "▁ab": 8)";
  for (int byte = 0; byte < 256; ++byte)
    vocab += fmt::format(R"(, "<0x{:02X}>": {})", byte, byte + 9);
  return document(
      {.added_tokens = "[" + added(0, "<unk>", "special") + ", " + added(1, "<s>", "special") +
                       ", " + added(2, "</s>", "special") + "]",
       .normalizer = R"({"type": "Sequence", "normalizers": [{"type": "Prepend", "prepend": "▁"},
           {"type": "Replace", "pattern": {"String": " "}, "content": "▁"}]})",
       .decoder = R"({"type": "Fuse"})",
       .model = bpe("{" + vocab + "}", merges,
                    R"(, "byte_fallback": true, "fuse_unk": true, "unk_token": "<unk>")")});
}

class GgufTokenizer : public ::testing::Test {
 protected:
  // A file with the keys of a tokenizer; `whole`: with its tokenizer.json too.
  void write(const std::string& json, const GgufTokenizerFields& fields, bool whole = false) {
    GgufKeys keys;
    add_gguf_tokenizer(json, fields, keys);
    GgufWriter(path(), keys, {}).finish();
    if (whole) return;
    GgufKeys own;
    const GgufFiles files = GgufFiles::open(path());
    for (const auto& [name, value] : files.metadata().entries())
      if (name != "tokenizer.huggingface.json") own.add(name, value);
    GgufWriter(path(), own, {}).finish();
  }

  std::filesystem::path path() const { return folder_ / "a.gguf"; }

  TempDirectory folder_;
};

TEST_F(GgufTokenizer, ReadsTheBytesThatItsKeysStandFor) {
  const std::string json = byte_level(kSmollm);
  write(json, {.vocab_size = 13, .bos = 9, .adds_bos = true});
  const GgufFiles files = GgufFiles::open(path());
  const GgufMetadata& metadata = files.metadata();
  EXPECT_EQ(metadata.text("tokenizer.ggml.pre"), "smollm");
  EXPECT_EQ(metadata.texts("tokenizer.ggml.tokens")->back(), "[PAD12]");
  EXPECT_THAT(*metadata.integers("tokenizer.ggml.token_type"),
              ElementsAre(1, 1, 1, 1, 1, 1, 1, 1, 1, 3, 4, 5, 5));
  const Tokenizer tokenizer = Tokenizer::load(path()), original = Tokenizer::parse(json);
  for (const char* text : {"ab ab", "1212", "ab<s>!", " ab<x>b 12!", "", "  b"}) {
    EXPECT_EQ(tokenizer.encode(text, false), original.encode(text, false)) << text;
    const auto ids = original.encode(text, false);
    EXPECT_EQ(tokenizer.decode(ids, true), original.decode(ids, true)) << text;
  }
  EXPECT_THAT(tokenizer.encode("12", true), ElementsAre(9, 2, 3)) << "digits are apart";
  EXPECT_TRUE(tokenizer.is_special(9));
  EXPECT_FALSE(tokenizer.is_special(10));
}

TEST_F(GgufTokenizer, KeepsTheWholeDocument) {
  const std::string json = byte_level(kGpt2);
  write(json, {.vocab_size = 11}, true);
  EXPECT_EQ(tokenizer_json(path()), json);
  EXPECT_EQ(*find_tokenizer_file(path()), path());
}

TEST_F(GgufTokenizer, HasScoresForTheMergesOfSentencePiece) {
  const std::string json = sentencepiece(R"(["a b", "▁ a", "▁ ab", "▁a b"])");
  EXPECT_THAT([&] { write(json, {.vocab_size = 265}); },
              ThrowsMessage<Unsupported>(HasSubstr("merges")))
      << "the longer left part goes first";
  write(sentencepiece(R"(["a b", "▁ a", "▁a b", "▁ ab"])"),
        {.vocab_size = 265, .bos = 1, .adds_bos = true});
  const Tokenizer tokenizer = Tokenizer::load(path());
  EXPECT_THAT(tokenizer.encode("ab", true), ElementsAre(1, 8));
  EXPECT_THAT(tokenizer.encode("a b", false), ElementsAre(6, 3, 5));
  EXPECT_THAT(tokenizer.encode("é", false), ElementsAre(3, 9 + 0xC3, 9 + 0xA9));
  const GgufFiles files = GgufFiles::open(path());
  EXPECT_EQ(files.metadata().text("tokenizer.ggml.model"), "llama");
  EXPECT_EQ(files.metadata().boolean("tokenizer.ggml.add_space_prefix"), true);
}

TEST_F(GgufTokenizer, RefusesByNameWhatHasNoPlace) {
  const auto refusal = [&](const std::string& json) {
    try {
      write(json, {.vocab_size = 20});
    } catch (const Unsupported& error) {
      return std::string(error.what());
    }
    return std::string();
  };
  const char* const other = R"({"type": "Sequence", "pretokenizers": [
      {"type": "Split", "pattern": {"Regex": "x+"}, "behavior": "Isolated", "invert": false},
      {"type": "ByteLevel", "add_prefix_space": false, "use_regex": false}]})";
  EXPECT_THAT(refusal(byte_level(other)), HasSubstr("pre_tokenizer"));
  EXPECT_THAT(refusal(byte_level(kGpt2, R"(, "ignore_merges": true)")),
              HasSubstr("with ignore_merges"));
  EXPECT_THAT(refusal(document({.model = R"({"type": "Unigram", "vocab": [], "unk_id": 0})"})),
              HasSubstr("Unigram"));
  GgufKeys keys;
  keys.add_text("tokenizer.ggml.model", "gpt2");
  keys.add_text("tokenizer.ggml.pre", "strange");
  const std::vector<std::string_view> tokens{"a"};
  keys.add_texts("tokenizer.ggml.tokens", tokens);
  GgufWriter(path(), keys, {}).finish();
  EXPECT_THAT([&] { Tokenizer::load(path()); },
              ThrowsMessage<Unsupported>(HasSubstr("tokenizer.ggml.pre: expected one of default")));
}

TEST_F(GgufTokenizer, WritesTheFilesOfADirectory) {
  write(
      byte_level(kGpt2),
      {.vocab_size = 11, .bos = 9, .eos = 10, .adds_bos = true, .chat_template = "{{ messages }}"});
  const GgufFiles files = GgufFiles::open(path());
  const Json config = parse_json(gguf_tokenizer_config(files.metadata()));
  EXPECT_EQ(config["bos_token"], "<s>");
  EXPECT_EQ(config["eos_token"], "<x>");
  EXPECT_EQ(config["add_bos_token"], true);
  EXPECT_EQ(gguf_chat_template(files.metadata()), "{{ messages }}");
}

TEST(GgufPre, PatternsCompile) {
  for (const tokenizer::GgufPre& pre : tokenizer::gguf_pres())
    for (const auto* patterns : {&pre.patterns, &pre.own_patterns})
      for (const std::string_view pattern : *patterns) {
        const Json split{{"type", "Split"},
                         {"pattern", {{"Regex", pattern}}},
                         {"behavior", "Isolated"},
                         {"invert", false}};
        const Tokenizer tokenizer =
            Tokenizer::parse(document({.pre_tokenizer = dump_json(split), .model = abc_model()}));
        EXPECT_THAT(tokenizer.encode("abc", false), ElementsAre(4)) << pattern;
      }
}

}  // namespace
}  // namespace anabatic::io
