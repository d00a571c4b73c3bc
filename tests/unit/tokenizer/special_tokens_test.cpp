// SPDX-License-Identifier: Apache-2.0
// BOS and EOS from files that agree, differ or are missing.
#include "io/tokenizer/special_tokens.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <stdlib.h>

#include <filesystem>
#include <fstream>

#include "anabatic/error.h"
#include "small_tokenizers.h"

namespace anabatic::io {
namespace {

namespace fs = std::filesystem;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::SizeIs;
using ::testing::ThrowsMessage;

constexpr const char* kBosInFront = R"({"type": "TemplateProcessing", "single": [
    {"SpecialToken": {"id": "<s>", "type_id": 0}}, {"Sequence": {"id": "A", "type_id": 0}}],
    "pair": [], "special_tokens": {"<s>": {"id": "<s>", "ids": [7], "tokens": ["<s>"]}}})";
constexpr const char* kAround = R"({"type": "BertProcessing", "cls": ["<s>", 7],
    "sep": ["</s>", 8]})";

// <s> = 7, </s> = 8, <e> = 9 in addition to the seven tokens of abc_model.
class SpecialTokensTest : public ::testing::Test {
 protected:
  void SetUp() override {
    std::string pattern = (fs::temp_directory_path() / "anabatic-test-XXXXXX").string();
    ASSERT_NE(::mkdtemp(pattern.data()), nullptr);
    folder_ = pattern;
  }
  void TearDown() override { fs::remove_all(folder_); }

  void write(const char* name, const std::string& text) { std::ofstream(folder_ / name) << text; }

  static Tokenizer tokenizer(const char* post_processor = "null") {
    return Tokenizer::parse(document({.added_tokens = "[" + added(7, "<s>", "special") + "," +
                                                      added(8, "</s>", "special") + "," +
                                                      added(9, "<e>", "special") + "]",
                                      .post_processor = post_processor,
                                      .model = abc_model()}));
  }
  SpecialTokens resolve(const Tokenizer& tokenizer, AddToken bos = AddToken::kAuto,
                        AddToken eos = AddToken::kAuto, std::vector<std::int64_t> defaults = {}) {
    return resolve_special_tokens({.directory = folder_,
                                   .tokenizer = &tokenizer,
                                   .add_bos = bos,
                                   .append_eos = eos,
                                   .default_eos = std::move(defaults)});
  }

  fs::path folder_;
};

TEST_F(SpecialTokensTest, NoFilesNameNothing) {
  const SpecialTokens special = resolve(tokenizer());
  EXPECT_THAT(special.document.prefix, IsEmpty());
  EXPECT_THAT(special.document.suffix, IsEmpty());
  EXPECT_THAT(special.stops, IsEmpty());
  EXPECT_THAT(special.exported_eos, IsEmpty());
}

TEST_F(SpecialTokensTest, TheTokenizersEosIsAppendedWaitedForAndExported) {
  write("tokenizer_config.json", R"({"eos_token": "<e>", "added_tokens_decoder": {}})");
  write("config.json", R"({"vocab_size": 20, "eos_token_id": 8})");
  write("generation_config.json", R"({"eos_token_id": 8})");
  const SpecialTokens special = resolve(tokenizer());
  EXPECT_THAT(special.document.suffix, ElementsAre(9));
  EXPECT_THAT(special.stops, ElementsAre(9, 8));
  EXPECT_THAT(special.exported_eos, ElementsAre(9));
  ASSERT_THAT(special.warnings, SizeIs(1));
  EXPECT_THAT(special.warnings[0],
              HasSubstr("tokenizer_config.json '<e>' (9), config.json 8, generation_config.json 8; "
                        "documents end with 9, a generation ends at 9 and 8"));
}

TEST_F(SpecialTokensTest, AListThatHoldsEosIsNoDisagreement) {
  write("tokenizer_config.json", R"({"eos_token": {"content": "<e>", "lstrip": false}})");
  write("config.json", R"({"vocab_size": 20, "eos_token_id": 9})");
  write("generation_config.json", R"({"eos_token_id": [8, 9]})");
  const SpecialTokens special = resolve(tokenizer());
  EXPECT_THAT(special.document.suffix, ElementsAre(9));
  EXPECT_THAT(special.stops, ElementsAre(9, 8));
  EXPECT_THAT(special.exported_eos, IsEmpty());
  EXPECT_THAT(special.warnings, IsEmpty());
}

TEST_F(SpecialTokensTest, AListWithoutEosIsExtended) {
  write("tokenizer_config.json", R"({"eos_token": "<e>"})");
  write("config.json", R"({"vocab_size": 20, "eos_token_id": 9})");
  write("generation_config.json", R"({"eos_token_id": [8, 0]})");
  const SpecialTokens special = resolve(tokenizer());
  EXPECT_THAT(special.stops, ElementsAre(9, 8, 0));
  EXPECT_THAT(special.exported_eos, ElementsAre(9, 8, 0));
  EXPECT_THAT(special.warnings, SizeIs(1));
}

TEST_F(SpecialTokensTest, TheGenerationConfigGoesBeforeTheConfig) {
  write("config.json", R"({"vocab_size": 20, "eos_token_id": 0})");
  write("generation_config.json", R"({"eos_token_id": 3})");
  SpecialTokens special = resolve(tokenizer());
  EXPECT_THAT(special.document.suffix, ElementsAre(3));
  EXPECT_THAT(special.stops, ElementsAre(3));
  EXPECT_THAT(special.exported_eos, ElementsAre(3));
  write("generation_config.json", R"({"eos_token_id": [3, 0]})");  // the one that both name
  special = resolve(tokenizer());
  EXPECT_THAT(special.document.suffix, ElementsAre(0));
  EXPECT_THAT(special.stops, ElementsAre(0, 3));
  EXPECT_THAT(special.warnings, IsEmpty());
  // Without a tokenizer the same, for data that is tokens already.
  EXPECT_THAT(resolve_special_tokens({.directory = folder_}).stops, ElementsAre(0, 3));
}

TEST_F(SpecialTokensTest, TheFamilysDefaultEndsAGenerationWhereNothingElseIsSaid) {
  EXPECT_THAT(resolve(tokenizer(), AddToken::kAuto, AddToken::kAuto, {2}).stops, ElementsAre(2));
  EXPECT_THAT(resolve(tokenizer(), AddToken::kAuto, AddToken::kAuto, {2}).document.suffix,
              IsEmpty());
  write("tokenizer_config.json", R"({"eos_token": "<e>"})");
  const SpecialTokens special = resolve(tokenizer(), AddToken::kAuto, AddToken::kAuto, {2});
  EXPECT_THAT(special.stops, ElementsAre(9));
  EXPECT_THAT(special.exported_eos, ElementsAre(9));  // for a reader that would take the default
}

TEST_F(SpecialTokensTest, TheTokensMapCountsAsInTransformers) {
  write("tokenizer_config.json", R"({"eos_token": "</s>"})");
  write("special_tokens_map.json", R"({"eos_token": {"content": "<e>"}})");
  EXPECT_THAT(resolve(tokenizer()).document.suffix, ElementsAre(9));
  EXPECT_THAT(resolve(tokenizer()).warnings, SizeIs(1));
  write("tokenizer_config.json", R"({"eos_token": "</s>", "added_tokens_decoder": {}})");
  EXPECT_THAT(resolve(tokenizer()).document.suffix, ElementsAre(8));
}

TEST_F(SpecialTokensTest, ThePostProcessorSaysWhatStandsInFront) {
  const Tokenizer with_bos = tokenizer(kBosInFront);
  EXPECT_THAT(resolve(with_bos).document.prefix, ElementsAre(7));
  EXPECT_FALSE(resolve(with_bos).post_processor_lacks_prefix);
  EXPECT_THAT(resolve(with_bos, AddToken::kNever).document.prefix, IsEmpty());
  EXPECT_THAT(resolve(with_bos, AddToken::kAlways).document.prefix, ElementsAre(7));
  write("tokenizer_config.json", R"({"bos_token": "<s>", "add_bos_token": false})");
  EXPECT_THAT(resolve(with_bos).document.prefix, ElementsAre(7));
  EXPECT_THAT(resolve(with_bos).warnings,
              ElementsAre(HasSubstr("add_bos_token of tokenizer_config.json is false, yet the "
                                    "post-processor of tokenizer.json puts '<s>' in front"),
                          HasSubstr("no file names an EOS; documents end without one")));
}

TEST_F(SpecialTokensTest, AddBosTokenCountsWhereThePostProcessorPutsNothingInFront) {
  for (const char* post_processor : {"null", R"({"type": "ByteLevel"})"}) {
    const Tokenizer plain = tokenizer(post_processor);
    write("tokenizer_config.json", R"({"bos_token": "<s>"})");
    EXPECT_THAT(resolve(plain).document.prefix, IsEmpty());
    EXPECT_THAT(resolve(plain, AddToken::kAlways).document.prefix, ElementsAre(7));
    write("tokenizer_config.json", R"({"bos_token": "<s>", "add_bos_token": true})");
    EXPECT_THAT(resolve(plain).document.prefix, ElementsAre(7));
    EXPECT_TRUE(resolve(plain).post_processor_lacks_prefix);
    EXPECT_THAT(resolve(plain, AddToken::kNever).document.prefix, IsEmpty());
    write("tokenizer_config.json", R"({"bos_token": null, "add_bos_token": true})");
    EXPECT_THAT(resolve(plain).document.prefix, IsEmpty());
  }
}

TEST_F(SpecialTokensTest, TheTokenizersOwnSuffixEndsDocumentsAndTexts) {
  write("tokenizer_config.json", R"({"eos_token": "</s>"})");
  const SpecialTokens special = resolve(tokenizer(kAround));
  EXPECT_THAT(special.document.suffix, ElementsAre(8));  // once
  EXPECT_THAT(special.text.suffix, ElementsAre(8));
  EXPECT_THAT(resolve(tokenizer(kAround), AddToken::kAuto, AddToken::kNever).document.suffix,
              IsEmpty());
  EXPECT_THAT(resolve(tokenizer()).text.suffix, IsEmpty());
}

TEST_F(SpecialTokensTest, RefusesWhatTheVocabularyLacks) {
  const Tokenizer plain = tokenizer();
  const auto refuses = [&](const char* file, const char* text, const char* message) {
    write(file, text);
    EXPECT_THAT([&] { resolve(plain); }, ThrowsMessage<InvalidArgument>(HasSubstr(message)));
    fs::remove(folder_ / file);
  };
  refuses("tokenizer_config.json", R"({"eos_token": "<zzz>"})",
          "tokenizer_config.json: eos_token: expected a token of tokenizer.json, which lacks "
          "'<zzz>'");
  refuses("tokenizer_config.json", R"({"bos_token": "<zzz>", "add_bos_token": true})",
          "bos_token: expected a token of tokenizer.json, which lacks '<zzz>'");
  refuses("tokenizer_config.json", R"({"eos_token": 5})", "eos_token: expected a token's text");
  refuses("config.json", R"({"vocab_size": 10, "eos_token_id": 10})",
          "config.json: eos_token_id: expected an id below vocab_size 10, or a list of them, got "
          "10");
  refuses("generation_config.json", R"({"eos_token_id": [2, 77]})",
          "generation_config.json: eos_token_id: expected an id below vocab_size 10, or a list of "
          "them, got [2,77]");
  refuses("generation_config.json", R"({"eos_token_id": "x"})", "got \"x\"");
  refuses("generation_config.json", "[1]", "expected a JSON object, got [1]");
  EXPECT_THAT([&] { resolve(plain, AddToken::kAlways); },
              ThrowsMessage<InvalidArgument>(HasSubstr("data.add_bos: expected a bos_token")));
  EXPECT_THAT([&] { resolve(plain, AddToken::kAuto, AddToken::kAlways); },
              ThrowsMessage<InvalidArgument>(HasSubstr("expected an eos_token in "
                                                       "tokenizer_config.json or an eos_token_id "
                                                       "in config.json")));
}

TEST_F(SpecialTokensTest, SaysWhereIdsOfTheFilesDiffer) {
  write("tokenizer_config.json", R"({"eos_token": "<e>", "added_tokens_decoder":
      {"8": {"content": "<e>"}}})");
  const SpecialTokens special = resolve(tokenizer());
  EXPECT_THAT(special.document.suffix, ElementsAre(9));
  ASSERT_THAT(special.warnings, SizeIs(1));
  EXPECT_THAT(special.warnings[0],
              HasSubstr("'<e>' is 9 in tokenizer.json and 8 in added_tokens_decoder"));
}

}  // namespace
}  // namespace anabatic::io
