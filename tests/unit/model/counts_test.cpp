// SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>

#include "model/family.h"
#include "unit/model/model_files.h"

namespace anabatic::model {
namespace {

// The same in each layer.
std::function<double(std::int64_t)> pairs(double count) {
  return [=](std::int64_t) { return count; };
}

// vocabulary 11, hidden 12, inner 10, 3 layers, 6 query and 2 key heads of 4.
TEST(CountParameters, MatchesAHandCountOfADenseModel) {
  const ModelCounts counts = config_from(small_json("llama")).counts;
  const std::int64_t attention = 12 * 24 + 2 * (12 * 8) + 24 * 12, mlp = 3 * 12 * 10;
  const std::int64_t body = 3 * (attention + mlp + 2 * 12) + 12, head = 11 * 12;
  EXPECT_EQ(counts.total, body + 2 * head);
  EXPECT_EQ(counts.active, counts.total);
  EXPECT_EQ(counts.active_without_embedding_and_routers, body + head);
}

TEST(CountParameters, CountsChosenExpertsAndTheTiedHeadOnce) {
  const ModelCounts counts =
      config_from(small_json("qwen3_moe", R"("tie_word_embeddings": true, "attention_bias": true,
                      "mlp_only_layers": [0])"))
          .counts;
  const std::int64_t attention =
      12 * 24 + 2 * (12 * 8) + 24 * 12 + (24 + 8 + 8 + 12) + 2 * 4;  // biases, norms of q and k
  const std::int64_t expert = 3 * 12 * 5, dense = 3 * 12 * 10, router = 6 * 12, embedding = 11 * 12;
  const std::int64_t rest = 3 * (attention + 2 * 12) + dense + 12;
  EXPECT_EQ(counts.total, rest + 2 * (6 * expert + router) + embedding);
  EXPECT_EQ(counts.active, rest + 2 * (3 * expert + router) + embedding);
  EXPECT_EQ(counts.active_without_embedding_and_routers, rest + 2 * 3 * expert + embedding);
}

TEST(CountParameters, AgreesWithTheStatesOfTheGraph) {
  for (const Family* family : families()) {
    const ModelConfig config =
        config_from(small_json(std::string(family->model_type),
                               R"("tie_word_embeddings": true, "attention_bias": false)"));
    std::int64_t total = 0;
    const ir::Graph graph = build_graph(config, {.num_tokens = 1});
    for (const ir::State& state : graph.states)
      total += graph.value(state.before).type.num_elements();
    EXPECT_EQ(config.counts.total, total) << family->model_type;
  }
}

struct Yardstick {
  const char* json;
  std::int64_t total_millions, active_millions;
  double step_gflop;  // 4 x 512 tokens, causal
};

// Published sizes of the models on which speed is measured.
TEST(CountParameters, MatchesTheYardsticks) {
  const Yardstick yardsticks[] = {
      {R"({"model_type": "mixtral", "vocab_size": 32000, "hidden_size": 512,
           "intermediate_size": 1536, "num_hidden_layers": 8, "num_attention_heads": 8,
           "num_key_value_heads": 4, "num_local_experts": 8, "num_experts_per_tok": 2})",
       190, 77, 772},
      {R"({"model_type": "qwen3_moe", "vocab_size": 32000, "hidden_size": 512,
           "intermediate_size": 1536, "moe_intermediate_size": 256, "num_hidden_layers": 8,
           "num_attention_heads": 8, "num_key_value_heads": 4, "head_dim": 64, "num_experts": 64,
           "num_experts_per_tok": 8})",
       241, 64, 617},
      {R"({"model_type": "llama", "vocab_size": 32000, "hidden_size": 576,
           "intermediate_size": 1536, "num_hidden_layers": 16, "num_attention_heads": 9,
           "num_key_value_heads": 3})",
       94, 94, 990}};
  for (const Yardstick& yardstick : yardsticks) {
    const ModelConfig config = config_from(yardstick.json);
    const ModelCounts& counts = config.counts;
    EXPECT_EQ((counts.total + 500'000) / 1'000'000, yardstick.total_millions);
    EXPECT_EQ((counts.active + 500'000) / 1'000'000, yardstick.active_millions);
    const double flops = training_flops(config, 2048, pairs(4.0 * 512 * 513 / 2));
    // The published figures count routers and other attention constants: within half a percent.
    EXPECT_GE(flops, yardstick.step_gflop * 1e9 * 0.995);
    EXPECT_LE(flops, yardstick.step_gflop * 1e9 * 1.005);
  }
}

TEST(TrainingFlops, AddsAttentionByPairs) {
  const ModelConfig config = config_from(small_json("llama"));
  const double linear = training_flops(config, 10, pairs(0));
  EXPECT_EQ(linear, 60.0 * static_cast<double>(config.counts.active_without_embedding_and_routers));
  EXPECT_EQ(training_flops(config, 10, pairs(55)) - linear, 7.0 * (4 + 4) * 6 * 55 * 3);
}

TEST(TrainingFlops, AskForThePairsOfEachWindow) {
  const ModelConfig config = config_from(small_json(
      "qwen3", R"("use_sliding_window": true, "sliding_window": 8, "max_window_layers": 2)"));
  EXPECT_TRUE(config.counts.has_window());
  const double linear = training_flops(config, 10, pairs(0));
  const auto by_window = [](std::int64_t window) { return window == 8 ? 1.0 : 100.0; };
  EXPECT_EQ(training_flops(config, 10, by_window) - linear, 7.0 * (4 + 4) * 6 * (100 + 100 + 1));
}

}  // namespace
}  // namespace anabatic::model
