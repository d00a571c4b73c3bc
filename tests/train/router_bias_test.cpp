// SPDX-License-Identifier: Apache-2.0
#include "train/router_bias.h"

#include <gtest/gtest.h>

#include "train/state_tiers.h"

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

}  // namespace
}  // namespace anabatic::train
