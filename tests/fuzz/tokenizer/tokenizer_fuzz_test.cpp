// SPDX-License-Identifier: Apache-2.0
// Damaged tokenizer.json: a clear error or a tokenizer that works, never a crash or a huge
// allocation. The budget of rounds is fixed and the seed printed.
#include <fmt/core.h>
#include <gtest/gtest.h>

#include <cstdlib>
#include <filesystem>
#include <iterator>
#include <new>
#include <random>

#include "anabatic/error.h"
#include "base/json.h"
#include "base/text.h"
#include "io/tokenizer/tokenizer.h"
#include "io/tokenizer/tokenizer_file.h"

namespace {

constexpr std::size_t kMaxAllocation_bytes = std::size_t{512} << 20;

}  // namespace

// std::stable_sort takes this one.
void* operator new(std::size_t size, const std::nothrow_t&) noexcept {
  if (size > kMaxAllocation_bytes) std::abort();
  return std::malloc(size);
}
void* operator new(std::size_t size) {
  if (void* memory = operator new(size, std::nothrow)) return memory;
  throw std::bad_alloc();
}
void operator delete(void* memory) noexcept { std::free(memory); }
void operator delete(void* memory, std::size_t) noexcept { std::free(memory); }

namespace anabatic::io {
namespace {

// Every kind of component, so that every field is damaged at some time.
const char* const kDocuments[] = {
    R"({"version": "1.0", "truncation": null, "padding": null, "added_tokens": [
  {"id": 0, "content": "<unk>", "single_word": false, "lstrip": false, "rstrip": true, "normalized": false, "special": true},
  {"id": 9, "content": "[X]", "single_word": true, "lstrip": true, "rstrip": false, "normalized": true, "special": false}],
 "normalizer": {"type": "Sequence", "normalizers": [{"type": "Prepend", "prepend": "▁"},
  {"type": "Replace", "pattern": {"String": " "}, "content": "▁"}, {"type": "NFC"},
  {"type": "Strip", "strip_left": true, "strip_right": true}]},
 "pre_tokenizer": {"type": "Metaspace", "replacement": "▁", "prepend_scheme": "first", "split": true},
 "post_processor": {"type": "TemplateProcessing", "single": [{"SpecialToken": {"id": "<s>", "type_id": 0}},
  {"Sequence": {"id": "A", "type_id": 0}}], "pair": [], "special_tokens": {"<s>": {"id": "<s>", "ids": [1], "tokens": ["<s>"]}}},
 "decoder": {"type": "Sequence", "decoders": [{"type": "Replace", "pattern": {"Regex": "▁+"}, "content": " "},
  {"type": "ByteFallback"}, {"type": "Fuse"}, {"type": "Strip", "content": " ", "start": 1, "stop": 0}]},
 "model": {"type": "BPE", "dropout": null, "unk_token": "<unk>", "continuing_subword_prefix": null,
  "end_of_word_suffix": null, "fuse_unk": true, "byte_fallback": true, "ignore_merges": false,
  "vocab": {"<unk>": 0, "<0x41>": 1, "▁": 2, "a": 3, "b": 4, "▁a": 5, "▁ab": 6, "ab": 7, "bb": 8},
  "merges": ["▁ a", ["▁a", "b"], "a b", "b b"]}})",
    R"({"version": "1.0", "added_tokens": [], "normalizer": {"type": "Lowercase"},
 "pre_tokenizer": {"type": "Sequence", "pretokenizers": [{"type": "Digits", "individual_digits": true},
  {"type": "Punctuation", "behavior": "Contiguous"}, {"type": "Split", "pattern": {"Regex": "[^\\s\\p{L}&&[^b]]+|\\w{1,3}"},
  "behavior": "MergedWithNext", "invert": false}, {"type": "ByteLevel", "add_prefix_space": true, "use_regex": true}]},
 "post_processor": {"type": "ByteLevel"}, "decoder": {"type": "ByteLevel"},
 "model": {"vocab": {"a": 0, "b": 1, "Ġ": 2, "ab": 3, "Ġab": 4, "Ã": 5}, "merges": ["a b", "Ġ ab"]}})",
    R"({"version": "1.0", "added_tokens": [],
 "normalizer": {"type": "Sequence", "normalizers": [{"type": "Nmt"}, {"type": "StripAccents"}]},
 "pre_tokenizer": {"type": "Metaspace", "replacement": "▁", "prepend_scheme": "always", "split": false},
 "model": {"type": "Unigram", "unk_id": 0, "byte_fallback": true,
  "vocab": [["<unk>", 0], ["▁", -3.5], ["a", -4], ["b", -5], ["▁ab", -2.5], ["bb", -6], ["<0x41>", 0]]}})",
};

// Loading either fails with one of our errors or gives something that encodes and decodes.
void try_document(const std::string& json) {
  try {
    const Tokenizer tokenizer = Tokenizer::parse(json);
    const auto ids = tokenizer.encode("ab  [X] Aé1😀 bbab<unk>" + std::string(300, 'b'), true);
    tokenizer.decode(ids, true);
    TokenStream stream(tokenizer, false);
    for (const auto id : ids) stream.push(id);
    stream.finish();
  } catch (const Error& error) {
    EXPECT_NE(std::string(error.what()).find("[tokenizer]"), std::string::npos) << error.what();
  }
}

TEST(TokenizerFuzz, UndamagedDocumentsLoad) {
  for (const char* json : kDocuments) {
    const Tokenizer tokenizer = Tokenizer::parse(json);
    EXPECT_FALSE(tokenizer.encode("ab", false).empty());
  }
}

TEST(TokenizerFuzz, EveryTruncation) {
  for (const std::string json : kDocuments)
    for (std::size_t size = 0; size < json.size(); ++size)
      EXPECT_THROW(Tokenizer::parse(json.substr(0, size)), InvalidArgument) << size;
}

TEST(TokenizerFuzz, FlippedBitsAndBytes) {
  constexpr unsigned kSeed = 11;
  std::mt19937 random(kSeed);
  SCOPED_TRACE(fmt::format("seed {}", kSeed));
  for (int round = 0; round < 6000; ++round) {
    std::string json = kDocuments[static_cast<std::size_t>(round) % std::size(kDocuments)];
    for (unsigned i = 0; i <= random() % 3; ++i) {
      char& byte = json[random() % json.size()];
      byte = random() % 2 ? static_cast<char>(byte ^ 1 << random() % 8)
                          : static_cast<char>(R"({}[]",:0129-\+*?()|ax)"[random() % 21]);
    }
    try_document(json);
  }
}

// Numbers, strings and containers put in the place of every value.
TEST(TokenizerFuzz, AbsurdValues) {
  const std::string values[] = {
      "2147483648", "-1",   "1e300",       "4294967295", "18446744073709551615",
      "16777215",   "null", "\"\"",        "[]",         "{}",
      "[[[[]]]]",   "true", "\"\\ud800\"", "0.5",        "\"" + std::string(1 << 16, 'x') + "\""};
  for (const std::string json : kDocuments) {
    for (std::size_t at = json.find(": "); at != std::string::npos; at = json.find(": ", at + 1)) {
      const std::size_t end = json.find_first_of(",}]\n", at);
      for (const std::string& value : values)
        try_document(json.substr(0, at + 2) + value + json.substr(end));
    }
  }
}

TEST(TokenizerFuzz, DeepNesting) {
  for (const int depth : {40, 100000}) {
    std::string normalizer;
    for (int i = 0; i < depth; ++i) normalizer += R"({"type":"Sequence","normalizers":[)";
    for (int i = 0; i < depth; ++i) normalizer += "]}";
    EXPECT_THROW(Tokenizer::parse(R"({"normalizer":)" + normalizer +
                                  R"(,"model":{"vocab":{},"merges":[]}})"),
                 Unsupported);
  }
}

TEST(TokenizerFuzz, FlippedBitsOfSentencePieceModels) {
  const std::filesystem::path corpus =
      ANABATIC_SOURCE_DIR "/tests/fuzz/tokenizer/sentencepiece_corpus/accepted";
  std::mt19937 random(13);
  int num_read = 0, num_refused = 0;
  for (const auto& entry : std::filesystem::directory_iterator(corpus)) {
    const std::string good = read_file(entry.path());
    for (int round = 0; round < 300; ++round) {
      std::string bytes = good;
      for (unsigned i = 0; i <= random() % 3; ++i)
        bytes[random() % bytes.size()] ^= static_cast<char>(1u << random() % 8);
      if (random() % 4 == 0) bytes.resize(random() % bytes.size());
      try {
        try_document(dump_json(tokenizer::convert_sentencepiece(bytes, "tokenizer.model", true)));
        ++num_read;
      } catch (const Error& error) {
        EXPECT_TRUE(std::string(error.what()).starts_with("[tokenizer] tokenizer.model"));
        ++num_refused;
      }
    }
  }
  EXPECT_GT(num_read, 100);
  EXPECT_GT(num_refused, 100);
}

TEST(TokenizerFuzz, RandomBytesAreEncodedOrRefused) {
  std::mt19937 random(5);
  const Tokenizer tokenizer = Tokenizer::parse(kDocuments[0]);
  for (int round = 0; round < 3000; ++round) {
    std::string text(random() % 40, '\0');
    for (char& byte : text) byte = static_cast<char>(random() % 4 ? 'a' + random() % 3 : random());
    const bool is_valid = !find_invalid_utf8(text);
    try {
      tokenizer.encode(text, false);
      EXPECT_TRUE(is_valid);
    } catch (const InvalidArgument&) {
      EXPECT_FALSE(is_valid);
    }
  }
}

}  // namespace
}  // namespace anabatic::io
