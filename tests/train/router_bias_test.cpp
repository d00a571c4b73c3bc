// SPDX-License-Identifier: Apache-2.0
#include "train/router_bias.h"

#include <fmt/core.h>
#include <gtest/gtest.h>

#include <cstring>

#include "base/error.h"
#include "io/safetensors.h"
#include "support/tiny_run.h"
#include "train/state_tiers.h"
#include "train/trainer.h"

namespace anabatic::train {
namespace {

constexpr float kRate = 0.001f;

struct Biases {
  runtime::StateStore store;
  Name state = intern("layers.1.router.correction_bias");

  Biases() {
    store.add(state, tensor_type(DType::kFloat32, {4}), runtime::Tier::kMemory,
              {.role = spec::StateRole::kParameter});
  }
  std::vector<float> values() {
    std::vector<float> result(4);
    StateCursor(store).read(state, 0, result);
    return result;
  }
};

ExpertCounts counts_of(const std::vector<std::vector<std::int64_t>>& layers) {
  std::vector<std::int64_t> numbers;
  for (std::size_t i = 0; i < layers.size(); ++i) numbers.push_back(static_cast<std::int64_t>(i));
  ExpertCounts counts(std::move(numbers), layers[0].size());
  std::size_t at = 0;
  for (const auto& layer : layers)
    for (const std::int64_t count : layer) counts.values()[at++] = count;
  return counts;
}

TEST(RouterBias, MovesTowardsTheMeanByOneRateAnUpdate) {
  Biases biases;
  // Layer 0 has no bias. The mean of layer 1 is 2.5, and of its second step 3, which one has.
  update_router_biases(biases.store, counts_of({{9, 9, 9, 9}, {4, 3, 2, 1}}), kRate);
  EXPECT_EQ(biases.values(), (std::vector<float>{-kRate, -kRate, kRate, kRate}));
  update_router_biases(biases.store, counts_of({{0, 0, 0, 0}, {3, 2, 2, 5}}), kRate);
  EXPECT_EQ(biases.values(), (std::vector<float>{-kRate, 0, 2 * kRate, 0}));
}

TEST(RouterBias, StaysWithoutARateOrWithoutTokens) {
  Biases biases;
  update_router_biases(biases.store, counts_of({{1, 2, 3, 4}, {4, 3, 2, 1}}), 0);
  update_router_biases(biases.store, counts_of({{1, 2, 3, 4}, {0, 0, 0, 0}}), kRate);
  EXPECT_EQ(biases.values(), (std::vector<float>{0, 0, 0, 0}));
}

constexpr const char* kModel = R"("model_type": "dots1", "moe_intermediate_size": 12,
    "n_shared_experts": 1, "sliding_window": null)";

// What a run leaves in its checkpoint, by layers.
std::vector<std::vector<float>> trained_biases(const std::filesystem::path& checkpoint) {
  const io::SafetensorsDirectory files = io::SafetensorsDirectory::open(checkpoint);
  std::vector<std::vector<float>> biases;
  for (const int layer : {0, 1}) {
    const io::TensorEntry* entry =
        files.find(fmt::format("model.layers.{}.mlp.gate.e_score_correction_bias", layer));
    EXPECT_NE(entry, nullptr);
    std::vector<float>& values = biases.emplace_back(4);
    EXPECT_EQ(entry->data.size(), values.size() * sizeof(float));
    std::memcpy(values.data(), entry->data.data(), entry->data.size());
  }
  return biases;
}

RunConfig run_of(const testing::TemporaryDirectory& folder, std::int64_t steps, double rate) {
  RunConfig run = testing::tiny_run(folder.path(), kModel);
  run.train.steps = steps;
  run.train.router_bias_update_rate = rate;
  return run;
}

TEST(RouterBias, OfAStepDoesNotDependOnItsCut) {
  std::vector<std::vector<float>> whole;
  for (const std::int64_t micro_batches : {1, 4}) {
    const testing::TemporaryDirectory folder;
    RunConfig run = run_of(folder, 1, kRate);
    run.train.gradient_accumulation_steps = micro_batches;
    run.train.micro_batch_size = 4 / micro_batches;
    const auto biases = trained_biases(Trainer(run).train().checkpoint);
    if (whole.empty()) whole = biases;
    EXPECT_EQ(biases, whole);
  }
  for (const std::vector<float>& layer : whole) {
    EXPECT_NE(layer, std::vector<float>(4, 0.0f));
    for (const float bias : layer)
      EXPECT_TRUE(bias == 0 || bias == kRate || bias == -kRate) << bias;
  }
}

TEST(RouterBias, IsKeptByAResumeAndByARunWithoutARate) {
  const testing::TemporaryDirectory whole, cut, still;
  const auto want = trained_biases(Trainer(run_of(whole, 4, kRate)).train().checkpoint);
  Trainer(run_of(cut, 2, kRate)).train();
  EXPECT_EQ(trained_biases(Trainer(run_of(cut, 4, kRate)).train().checkpoint), want);
  for (const auto& layer : trained_biases(Trainer(run_of(still, 2, 0)).train().checkpoint))
    EXPECT_EQ(layer, std::vector<float>(4, 0.0f));
}

struct Messages : RunListener {
  std::string all;
  void on_message(Severity, const std::string& text) override { all += text + "\n"; }
};

TEST(RouterBias, ARunSaysWhereNothingBalancesTheExperts) {
  for (const double rate : {0.0, 0.001}) {
    const testing::TemporaryDirectory folder;
    Messages messages;
    Trainer(run_of(folder, 1, rate), messages).train();
    EXPECT_EQ(messages.all.find("nothing balances the experts") != std::string::npos, rate == 0)
        << messages.all;
  }
}

TEST(RouterBias, NeedsAModelThatHasOne) {
  const testing::TemporaryDirectory folder;
  RunConfig run = testing::tiny_run(folder.path());
  run.train.router_bias_update_rate = kRate;
  EXPECT_THROW(Trainer(run).train(), InvalidArgument);
}

}  // namespace
}  // namespace anabatic::train
