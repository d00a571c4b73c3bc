// SPDX-License-Identifier: Apache-2.0
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>

#include "unit/model/model_files.h"

namespace anabatic::model {
namespace {

TEST(Initialize, FollowsTheRulesOfEachKind) {
  const ModelConfig config = config_from(
      small_json("llama", R"("hidden_size": 64, "intermediate_size": 96, "attention_bias": true,
                  "initializer_range": 0.5, "pad_token_id": 3)"));
  const States states = random_states(config, 1);
  EXPECT_THAT(states.at("layers.1.attention_norm.weight"), ::testing::Each(1.0f));
  EXPECT_THAT(states.at("norm.weight"), ::testing::Each(1.0f));
  EXPECT_THAT(states.at("layers.2.attention.q.bias"), ::testing::Each(0.0f));

  const std::vector<float>& matrix = states.at("layers.0.mlp.gate.weight");
  double sum = 0, squares = 0;
  for (const float value : matrix) {
    sum += value;
    squares += static_cast<double>(value) * value;
  }
  const auto count = static_cast<double>(matrix.size());
  // Five standard errors of a mean and of a deviation.
  EXPECT_LT(std::abs(sum / count), 5 * 0.5 / std::sqrt(count));
  EXPECT_LT(std::abs(std::sqrt(squares / count) - 0.5), 5 * 0.5 / std::sqrt(2 * count));

  const std::vector<float>& embedding = states.at("embedding.weight");
  for (std::size_t row = 0; row < 11; ++row) {
    const bool is_zero = std::all_of(embedding.begin() + static_cast<std::ptrdiff_t>(row * 64),
                                     embedding.begin() + static_cast<std::ptrdiff_t>(row * 64 + 64),
                                     [](float value) { return value == 0; });
    EXPECT_EQ(is_zero, row == 3);
  }
}

TEST(Initialize, DrawsTheRouterBiasAndTheSinksOfGptOssButNoOtherBias) {
  const States states = random_states(
      config_from(small_json("gpt_oss", R"("num_local_experts": 64, "num_attention_heads": 64,
                                            "initializer_range": 0.5)")),
      1);
  for (const char* name : {"layers.1.router.bias", "layers.1.attention.sinks"}) {
    double squares = 0;
    for (const float value : states.at(name)) squares += static_cast<double>(value) * value;
    // Five standard errors of a deviation.
    EXPECT_LT(std::abs(std::sqrt(squares / 64) - 0.5), 5 * 0.5 / std::sqrt(2.0 * 64)) << name;
  }
  for (const char* name : {"attention.q.bias", "attention.o.bias", "experts.gate.bias",
                           "experts.up.bias", "experts.down.bias"})
    EXPECT_THAT(states.at(std::string("layers.1.") + name), ::testing::Each(0.0f)) << name;
}

TEST(Initialize, NormsBehindBlocksOfPanguBeginBelowOne) {
  const States states =
      random_states(config_from(small_json("pangu_ultra_moe", R"("num_hidden_layers": 4)")), 1);
  for (const char* norm : {"attention_norm", "mlp_norm"})
    EXPECT_THAT(states.at(std::string("layers.3.") + norm + ".weight"), ::testing::Each(1.0f));
  for (const char* norm : {"attention_post_norm", "mlp_post_norm"})
    EXPECT_THAT(states.at(std::string("layers.3.") + norm + ".weight"), ::testing::Each(0.5f));
}

TEST(Initialize, DependsOnSeedAndNameAlone) {
  const ModelConfig config = config_from(small_json("mixtral"));
  const States a = random_states(config, 7), b = random_states(config, 7),
               c = random_states(config, 8);
  EXPECT_EQ(a, b);
  EXPECT_NE(a.at("layers.0.router.weight"), c.at("layers.0.router.weight"));
  EXPECT_NE(a.at("layers.0.experts.gate.weight"), a.at("layers.0.experts.up.weight"));
  EXPECT_NE(a.at("layers.0.router.weight"), a.at("layers.1.router.weight"));
}

TEST(Initialize, RefusesElementsBeyondTheState) {
  ir::State state;
  state.name = intern("embedding.weight");
  std::vector<float> values(12);
  EXPECT_THAT(message_of<InvalidArgument>([&] {
                initialize(state, tensor_type(DType::kFloat32, {3, 4}), 1, values, 0);
              }),
              ::testing::HasSubstr("embedding.weight: expected elements within 12, got [1, 13)"));
}

}  // namespace
}  // namespace anabatic::model
