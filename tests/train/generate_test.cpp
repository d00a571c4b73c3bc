// SPDX-License-Identifier: Apache-2.0
// Decoding with KV caches against the full forward, and what ends a generation.
#include "train/generate.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <numeric>

#include "anabatic/error.h"
#include "base/log.h"
#include "base/philox.h"
#include "support/tiny_run.h"
#include "train/trainer.h"

namespace anabatic::train {
namespace {

using anabatic::testing::TemporaryDirectory;
using anabatic::testing::tiny_run;
using ::testing::HasSubstr;

constexpr std::int64_t kVocabulary = 97;

RunConfig decoding_run(const TemporaryDirectory& folder, const std::string& extra,
                       const std::string& precision = "fp32") {
  RunConfig run = tiny_run(folder.path(), "\"max_position_embeddings\": 256" + extra);
  run.train.precision = precision;
  return run;
}

std::vector<std::int32_t> random_tokens(std::int64_t count) {
  std::vector<std::int32_t> tokens;
  for (std::int64_t i = 0; i < count; ++i)
    tokens.push_back(
        static_cast<std::int32_t>(random_below(11, 2, static_cast<std::uint64_t>(i), kVocabulary)));
  return tokens;
}

// The logits of every row, [tokens, vocabulary]. The session's parameters are drawn here.
std::vector<float> full_logits(ModelSession& session, std::span<const std::int32_t> tokens) {
  const auto program =
      session.bind({.name = "full",
                    .build = {.num_tokens = static_cast<std::int64_t>(tokens.size()),
                              .with_loss = false,
                              .with_logits = true}});
  session.load_parameters();
  session.refresh_derived();
  std::vector<std::int32_t> positions(tokens.size()), key_begin(tokens.size(), 0),
      key_end(tokens.size());
  std::iota(positions.begin(), positions.end(), 0);
  std::iota(key_end.begin(), key_end.end(), 1);
  program->set("tokens", tokens);
  program->set("positions", positions);
  program->set("key_begin", key_begin);
  program->set("key_end", key_end);
  program->run_alone(spec::Action::kForward);
  const TensorView logits = program->executor->output("logits");
  return {logits.as<const float>(), logits.as<const float>() + logits.type->num_elements()};
}

// Prompts around the chunk of 64 rows, each followed by single steps, against the full forward of
// the same tokens.
void expect_decoding_equals_full_forward(const std::string& extra) {
  constexpr std::int64_t kSteps = 4;
  for (const std::int64_t prompt : {1, 8, 20, 63, 64, 65, 130}) {
    const TemporaryDirectory folder;
    ModelSession session(decoding_run(folder, extra), false);
    const std::vector<std::int32_t> tokens = random_tokens(prompt + kSteps);
    Decoder decoder(session, prompt + kSteps);
    const std::vector<float> full = full_logits(session, tokens);
    for (std::int64_t end = prompt; end <= prompt + kSteps; ++end) {
      const auto fresh = end == prompt
                             ? std::span(tokens).first(static_cast<std::size_t>(prompt))
                             : std::span(tokens).subspan(static_cast<std::size_t>(end) - 1, 1);
      const std::span<const float> got = decoder.append(fresh);
      const float* want = full.data() + (end - 1) * kVocabulary;
      for (std::int64_t i = 0; i < kVocabulary; ++i)
        ASSERT_EQ(got[static_cast<std::size_t>(i)], want[i])
            << "prompt " << prompt << ", row " << end - 1 << ", id " << i << extra;
    }
    EXPECT_EQ(decoder.length(), prompt + kSteps);
    EXPECT_THROW(decoder.append(std::span(tokens).first(1)), InvalidArgument);
  }
}

TEST(Decoder, EqualsTheFullForward) { expect_decoding_equals_full_forward(""); }

TEST(Decoder, EqualsTheFullForwardWithASlidingWindow) {
  expect_decoding_equals_full_forward(", \"sliding_window\": 24");
}

TEST(Decoder, EqualsTheFullForwardWithOneKeyHeadAndTiedEmbeddings) {
  expect_decoding_equals_full_forward(
      ", \"num_key_value_heads\": 1, \"head_dim\": 8, \"tie_word_embeddings\": true");
}

TEST(Decoder, EqualsTheFullForwardOfQwen3Moe) {
  expect_decoding_equals_full_forward(
      ", \"model_type\": \"qwen3_moe\", \"architectures\": [\"Qwen3MoeForCausalLM\"], "
      "\"num_experts\": 4, \"moe_intermediate_size\": 12, \"decoder_sparse_step\": 2, "
      "\"mlp_only_layers\": [], \"norm_topk_prob\": true, \"head_dim\": 8, "
      "\"attention_bias\": true, \"num_hidden_layers\": 3");
}

TEST(Decoder, EqualsTheFullForwardOfGptOss) {
  expect_decoding_equals_full_forward(
      ", \"model_type\": \"gpt_oss\", \"architectures\": [\"GptOssForCausalLM\"], "
      "\"head_dim\": 8, \"sliding_window\": 24, \"num_hidden_layers\": 3");
}

TEST(Decoder, ForgetsAllButTheFirstTokens) {
  constexpr std::int64_t kKept = 70, kNew = 20;
  const TemporaryDirectory folder;
  ModelSession session(decoding_run(folder, ", \"sliding_window\": 24"), false);
  std::vector<std::int32_t> tokens = random_tokens(100 + kNew);
  Decoder decoder(session, 200);
  const std::span<const std::int32_t> first = std::span(tokens).first(100);
  const std::vector<std::int32_t> others(tokens.end() - kNew, tokens.end());
  std::vector<std::int32_t> kept(tokens.begin(), tokens.begin() + kKept);
  kept.insert(kept.end(), others.begin(), others.end());
  const std::vector<float> full = full_logits(session, kept);
  decoder.append(first);
  decoder.truncate(kKept);
  // A part of a chunk, then a token alone.
  for (const auto fresh : {std::span(others).first(kNew - 1), std::span(others).last(1)}) {
    const std::span<const float> got = decoder.append(fresh);
    const float* want = full.data() + (decoder.length() - 1) * kVocabulary;
    EXPECT_TRUE(std::equal(got.begin(), got.end(), want)) << decoder.length();
  }
}

std::vector<std::int32_t> generated(RunConfig run, std::int64_t prompt,
                                    std::vector<std::int64_t> stops = {}) {
  ModelSession session(run, false);
  std::vector<std::int32_t> ids;
  generate(session, random_tokens(prompt), stops, [&](std::int32_t id) { ids.push_back(id); });
  return ids;
}

// What tiny_run's config needs in order to be one of gpt2.
const std::string kGpt2 =
    R"(, "model_type": "gpt2", "num_key_value_heads": 4, "num_local_experts": null,
       "num_experts_per_tok": null, "output_router_logits": false)";

TEST(Decoder, EqualsTheFullForwardOfGpt2) { expect_decoding_equals_full_forward(kGpt2); }

TEST(Generate, EndsAtTheLastPositionThatTheModelHasLearned) {
  const TemporaryDirectory folder;
  RunConfig run = tiny_run(folder.path(), "\"max_position_embeddings\": 20" + kGpt2);
  run.generate.max_new_tokens = 100;
  ModelSession session(run, false);
  std::size_t count = 0;
  generate(session, random_tokens(7), {}, [&](std::int32_t) { ++count; });
  EXPECT_EQ(count, 13u);
}

TEST(LearnedPositions, HaveToReachTheEndOfASample) {
  const TemporaryDirectory folder;
  RunConfig run = tiny_run(folder.path(), "\"max_position_embeddings\": 15" + kGpt2);
  run.data.sequence_length = 16;
  try {
    Trainer(run).train();
    FAIL() << "expected an error";
  } catch (const InvalidArgument& error) {
    EXPECT_THAT(error.what(), HasSubstr("data.sequence_length: expected at most 15, the positions "
                                        "that gpt2 has learned, got 16"));
  }
}

TEST(Generate, GreedyTakesTheLikeliestTokenOfTheFullForward) {
  const TemporaryDirectory folder;
  for (const char* precision : {"fp32", "bf16"}) {
    RunConfig run = decoding_run(folder, "", precision);
    run.generate.temperature = 0;
    run.generate.max_new_tokens = 6;
    const std::vector<std::int32_t> ids = generated(run, 5);
    ASSERT_EQ(ids.size(), 6u);
    EXPECT_EQ(generated(run, 5), ids);
    std::vector<std::int32_t> tokens = random_tokens(5);
    for (const std::int32_t id : ids) {
      ModelSession session(run, false);
      const std::vector<float> logits = full_logits(session, tokens);
      const auto last = logits.end() - kVocabulary;
      EXPECT_EQ(std::max_element(last, logits.end()) - last, id) << precision;
      tokens.push_back(id);
    }
  }
}

TEST(Generate, DependsOnTheSeedAlone) {
  const TemporaryDirectory folder;
  RunConfig run = decoding_run(folder, "");
  run.generate.max_new_tokens = 12;
  const auto first = generated(run, 3);
  EXPECT_EQ(generated(run, 3), first);
  run.device.threads = 1;
  EXPECT_EQ(generated(run, 3), first);
  run.generate.seed = 1;
  EXPECT_NE(generated(run, 3), first);
  run.generate.top_k = 1;
  const auto likeliest = generated(run, 3);
  run.generate.temperature = 0;
  EXPECT_EQ(generated(run, 3), likeliest);
}

TEST(Generate, EndsAtAStopTokenWithoutEmittingIt) {
  const TemporaryDirectory folder;
  RunConfig run = decoding_run(folder, "");
  run.generate.max_new_tokens = 12;
  const auto whole = generated(run, 3);
  ASSERT_EQ(whole.size(), 12u);
  const std::int32_t stop = whole[7];
  const auto end = std::find(whole.begin(), whole.end(), stop);
  EXPECT_EQ(generated(run, 3, {5000, stop}), std::vector<std::int32_t>(whole.begin(), end));
}

TEST(Generate, EndsAtTheModelsLongestSequence) {
  const TemporaryDirectory folder;
  RunConfig run = tiny_run(folder.path());  // 64 positions
  run.generate.max_new_tokens = 1000000;
  std::string said;
  {
    const LogScope scope([&](Severity, const std::string& message) { said += message; });
    EXPECT_EQ(generated(run, 60).size(), 4u);
  }
  EXPECT_THAT(said,
              HasSubstr("stopped after 4 of 1000000 new tokens: with the 60 of the prompt they "
                        "fill the model's max_position_embeddings 64"));
  run.generate.max_new_tokens = 0;
  EXPECT_EQ(generated(run, 60).size(), 0u);
  try {
    generated(run, 64);
    FAIL() << "expected an error";
  } catch (const InvalidArgument& error) {
    EXPECT_THAT(error.what(), HasSubstr("the prompt has 64 tokens, the model takes 64"));
  }
}

}  // namespace
}  // namespace anabatic::train
