// SPDX-License-Identifier: Apache-2.0
// tokenizer.model and tekken.json, read as the tokenizer.json that they are equal to.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>

#include "anabatic/error.h"
#include "base/base64.h"
#include "base/json.h"
#include "io/proto/sentencepiece.pb.h"
#include "io/tokenizer/tokenizer.h"
#include "io/tokenizer/tokenizer_file.h"
#include "small_character_map.h"

namespace anabatic::io {
namespace {

using proto::SentencePieceModel;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::ThrowsMessage;
using Piece = SentencePieceModel::Piece;

void add(SentencePieceModel& model, std::string_view text, float score,
         Piece::Type type = Piece::NORMAL) {
  Piece& piece = *model.add_pieces();
  piece.set_piece(std::string(text));
  piece.set_score(score);
  piece.set_type(type);
}

// <unk> <s> </s> = 0 1 2, ▁ a b = 3 4 5, ▁a = 6, ab = 7, ▁ab = 8, <own> = 9.
SentencePieceModel small(proto::SentencePieceTrainer::ModelType type) {
  SentencePieceModel model;
  model.mutable_trainer_spec()->set_model_type(type);
  model.mutable_normalizer_spec()->set_remove_extra_whitespaces(false);
  add(model, "<unk>", 0, Piece::UNKNOWN);
  add(model, "<s>", 0, Piece::CONTROL);
  add(model, "</s>", 0, Piece::CONTROL);
  add(model, "\u2581", -3);
  add(model, "a", -4);
  add(model, "b", -5);
  add(model, "\u2581a", -2);
  add(model, "ab", -1.5);
  add(model, "\u2581ab", -2.5);
  add(model, "<own>", 0, Piece::USER_DEFINED);
  return model;
}

Tokenizer load(const SentencePieceModel& model, bool adds_bos = false) {
  return Tokenizer::parse(dump_json(
      tokenizer::convert_sentencepiece(model.SerializeAsString(), "tokenizer.model", adds_bos)));
}

TEST(SentencePieceModel, BpeMergesByScore) {
  const Tokenizer tokenizer = load(small(proto::SentencePieceTrainer::BPE));
  // ab (-1.5) goes ahead of ▁a (-2).
  EXPECT_THAT(tokenizer.encode("ab", false), ElementsAre(8));
  EXPECT_THAT(tokenizer.encode("aab", false), ElementsAre(6, 7));
  EXPECT_THAT(tokenizer.encode("  a", false), ElementsAre(3, 3, 6));
  EXPECT_THAT(tokenizer.encode("axyb", false), ElementsAre(6, 0, 5));
  EXPECT_THAT(tokenizer.encode("", false), ElementsAre());
  const std::vector<std::int32_t> ids{6, 7, 3};
  EXPECT_EQ(tokenizer.decode(ids, true), "aab ");
}

TEST(SentencePieceModel, UserDefinedPiecesAreNeverCut) {
  const Tokenizer tokenizer = load(small(proto::SentencePieceTrainer::BPE));
  EXPECT_THAT(tokenizer.encode("ab<own>ab <own>", false), ElementsAre(8, 9, 7, 3, 9));
  EXPECT_THAT(tokenizer.encode("<own>a", false), ElementsAre(3, 9, 4));
  EXPECT_FALSE(tokenizer.is_special(9));
  EXPECT_TRUE(tokenizer.is_special(1));
}

TEST(SentencePieceModel, UnigramTakesTheBestSum) {
  const Tokenizer tokenizer = load(small(proto::SentencePieceTrainer::UNIGRAM));
  EXPECT_THAT(tokenizer.encode("ab b", false), ElementsAre(8, 3, 5));
  EXPECT_THAT(tokenizer.encode("a<own>b", false), ElementsAre(6, 9, 5));
}

TEST(SentencePieceModel, ExtraSpacesVanish) {
  for (const auto type : {proto::SentencePieceTrainer::BPE, proto::SentencePieceTrainer::UNIGRAM}) {
    SentencePieceModel model = small(type);
    model.mutable_normalizer_spec()->set_remove_extra_whitespaces(true);
    EXPECT_THAT(load(model).encode("  ab   b \u2581", false), ElementsAre(8, 3, 5));
    EXPECT_THAT(load(model).encode("   ", false), ElementsAre());
  }
}

TEST(SentencePieceModel, CharacterMapComesFirst) {
  SentencePieceModel model = small(proto::SentencePieceTrainer::BPE);
  model.mutable_normalizer_spec()->set_precompiled_charsmap(
      character_map({{"A", "a"}, {"\u00A0", " "}}));
  EXPECT_THAT(load(model).encode("Ab\u00A0A", false), ElementsAre(8, 6));
}

TEST(SentencePieceModel, BeginsWithBosIfAsked) {
  EXPECT_THAT(load(small(proto::SentencePieceTrainer::BPE), true).encode("a", true),
              ElementsAre(1, 6));
  EXPECT_THAT(load(small(proto::SentencePieceTrainer::BPE)).encode("a", true), ElementsAre(6));
}

void expect_refusal(const SentencePieceModel& model, std::string_view text) {
  try {
    load(model);
    ADD_FAILURE() << "expected a refusal: " << text;
  } catch (const Error& error) {
    EXPECT_THAT(error.what(), HasSubstr(std::string(text)));
    EXPECT_THAT(error.what(), HasSubstr("[tokenizer] tokenizer.model: "));
  }
}

TEST(SentencePieceModel, RefusesWhatItCannotKeep) {
  const auto with = [](auto change) {
    SentencePieceModel model = small(proto::SentencePieceTrainer::BPE);
    change(model);
    return model;
  };
  expect_refusal({}, "expected a SentencePiece model with pieces");
  expect_refusal(with([](auto& m) { add(m, "a", 0); }), "pieces[10]: expected distinct pieces");
  expect_refusal(with([](auto& m) { add(m, "x", 0, Piece::UNKNOWN); }), "one unknown piece");
  expect_refusal(with([](auto& m) { add(m, "x", 0, Piece::UNUSED); }), "UNUSED");
  expect_refusal(with([](auto& m) { add(m, "x", NAN); }), "pieces[10]: expected a finite score");
  expect_refusal(with([](auto& m) { add(m, "\xFF", 0); }), "pieces[10]: expected UTF-8");
  expect_refusal(with([](auto& m) { add(m, "", 0); }), "pieces[10]: expected a text of 1 to");
  expect_refusal(with([](auto& m) { m.mutable_trainer_spec()->set_byte_fallback(true); }),
                 "byte_fallback: expected 256 byte pieces, got 0");
  expect_refusal(small(proto::SentencePieceTrainer::CHAR), "CHAR is not supported");
  EXPECT_THROW(tokenizer::convert_sentencepiece("no model", "x", false), InvalidArgument);
}

Json small_tekken() {
  Json vocab = Json::array();
  const auto add = [&](std::string_view bytes) {
    vocab.push_back(
        {{"rank", vocab.size()}, {"token_bytes", encode_base64(bytes)}, {"token_str", nullptr}});
  };
  for (int byte = 0; byte < 256; ++byte) add(std::string(1, static_cast<char>(byte)));
  for (const char* token : {"ab", " a", " ab", "\xC3\xA9", "not read"}) add(token);
  return {{"config",
           {{"pattern", R"( ?[^\s\d]+|\d|\s+)"},
            {"num_vocab_tokens", vocab.size()},
            {"default_vocab_size", 260 + 24},
            {"default_num_special_tokens", 24},
            {"version", "v3"}}},
          {"vocab", vocab}};
}

TEST(Tekken, TokensComeAfterTheSpecialOnes) {
  const Tokenizer tokenizer = Tokenizer::parse(dump_json(small_tekken()), "tekken.json");
  EXPECT_THAT(tokenizer.encode("ab ab\u00E9 12", false),
              ElementsAre(24 + 256, 24 + 258, 24 + 259, 24 + ' ', 24 + '1', 24 + '2'));
  EXPECT_THAT(tokenizer.encode("[INST]", true), ElementsAre(1, 3));
  EXPECT_EQ(tokenizer.token_to_id("<SPECIAL_23>"), 23);
  EXPECT_EQ(tokenizer.vocabulary_size(), 284);
  const std::vector<std::int32_t> ids{1, 24 + 256, 24 + 259};
  EXPECT_EQ(tokenizer.decode(ids, true), "ab\u00E9");
}

TEST(Tekken, NamesWhatIsWrong) {
  const auto refused = [](auto change, std::string_view text) {
    Json tekken = small_tekken();
    change(tekken);
    EXPECT_THAT([&] { Tokenizer::parse(dump_json(tekken), "tekken.json"); },
                ThrowsMessage<InvalidArgument>(HasSubstr(std::string(text))));
  };
  refused([](Json& t) { t["vocab"][7]["rank"] = 8; }, "vocab[7].rank: expected 7, got 8");
  refused([](Json& t) { t["vocab"][7]["token_bytes"] = "AA=="; }, "the byte 7 alone");
  refused([](Json& t) { t["vocab"][257]["token_bytes"] = "YWI="; }, "vocab[257].token_bytes");
  refused([](Json& t) { t["vocab"][257]["token_bytes"] = "***"; }, "bytes in base64");
  refused([](Json& t) { t["config"]["default_vocab_size"] = 1000; }, "default_vocab_size");
  const auto too_few = [](Json& t) {
    t["config"]["default_num_special_tokens"] = 19;
    t["config"]["default_vocab_size"] = 260 + 19;
  };
  refused(too_few, "at least the 20 special tokens");
}

TEST(TokenizerFile, FindsTheFileOfADirectory) {
  const std::filesystem::path folder =
      std::filesystem::temp_directory_path() / "anabatic_tokenizer_file_test";
  std::filesystem::remove_all(folder);
  std::filesystem::create_directories(folder);
  EXPECT_EQ(find_tokenizer_file(folder), std::nullopt);
  EXPECT_THROW(Tokenizer::load(folder), ResourceError);
  std::ofstream(folder / "tokenizer.model", std::ios::binary)
      << small(proto::SentencePieceTrainer::BPE).SerializeAsString();
  EXPECT_THAT(Tokenizer::load(folder).encode("ab", true), ElementsAre(1, 8));
  std::ofstream(folder / "tokenizer_config.json") << R"({"add_bos_token": false})";
  EXPECT_THAT(Tokenizer::load(folder).encode("ab", true), ElementsAre(8));
  // What is written for it is the same tokenizer.
  const std::string text = tokenizer_json(folder / "tokenizer.model");
  std::ofstream(folder / "tokenizer.json") << text;
  EXPECT_EQ(find_tokenizer_file(folder), folder / "tokenizer.json");
  EXPECT_EQ(tokenizer_json(folder / "tokenizer.json"), text);
  EXPECT_THAT(Tokenizer::load(folder).encode("ab", true), ElementsAre(8));
  std::filesystem::remove_all(folder);
}

}  // namespace
}  // namespace anabatic::io
