// SPDX-License-Identifier: Apache-2.0
#include "io/data/shuffle.h"

#include <gtest/gtest.h>

#include <cmath>
#include <vector>

namespace anabatic::io {
namespace {

std::vector<std::int64_t> epoch_order(std::int64_t size, std::uint64_t seed, std::int64_t epoch) {
  const SampleOrder order(size, seed, true);
  std::vector<std::int64_t> samples;
  for (std::int64_t i = 0; i < size; ++i) samples.push_back(order.sample(epoch * size + i));
  return samples;
}

TEST(SampleOrder, IsAPermutationForEverySizeTo1000) {
  for (std::int64_t size = 1; size <= 1000; ++size) {
    std::vector<bool> seen(static_cast<std::size_t>(size), false);
    for (const std::int64_t sample : epoch_order(size, 7, size % 3)) {
      ASSERT_GE(sample, 0);
      ASSERT_LT(sample, size);
      ASSERT_FALSE(seen[static_cast<std::size_t>(sample)]) << size;
      seen[static_cast<std::size_t>(sample)] = true;
    }
  }
}

TEST(SampleOrder, DiffersByEpochAndSeed) {
  const std::vector<std::int64_t> first = epoch_order(500, 1, 0);
  EXPECT_EQ(first, epoch_order(500, 1, 0));
  EXPECT_NE(first, epoch_order(500, 1, 1));
  EXPECT_NE(first, epoch_order(500, 2, 0));
  std::vector<std::int64_t> sorted(500);
  for (std::size_t i = 0; i < 500; ++i) sorted[i] = static_cast<std::int64_t>(i);
  EXPECT_NE(first, sorted);
}

// Where sample 0 lands over many seeds: chi-squared with 9 degrees of freedom, mean 9, deviation
// sqrt(18); six deviations above the mean is far beyond chance.
TEST(SampleOrder, SpreadsASampleEvenlyOverPlaces) {
  std::vector<double> counts(10, 0.0);
  constexpr int kSeeds = 10000;
  for (int seed = 0; seed < kSeeds; ++seed) {
    counts[static_cast<std::size_t>(
        SampleOrder(10, static_cast<std::uint64_t>(seed), true).sample(0))] += 1.0;
  }
  double chi_squared = 0.0;
  for (const double count : counts) chi_squared += std::pow(count - 1000.0, 2) / 1000.0;
  EXPECT_LT(chi_squared, 9.0 + 6.0 * std::sqrt(18.0));
}

TEST(SampleOrder, ComesInOrderAndWrapsWithoutShuffle) {
  const SampleOrder order(3, 5, false);
  std::vector<std::int64_t> samples;
  for (std::int64_t i = 0; i < 7; ++i) samples.push_back(order.sample(i));
  EXPECT_EQ(samples, (std::vector<std::int64_t>{0, 1, 2, 0, 1, 2, 0}));
  EXPECT_EQ(order.epoch(2), 0);
  EXPECT_EQ(order.epoch(3), 1);
}

TEST(Permutation, HoldsForSizesBeyond32Bits) {
  const std::uint64_t size = (std::uint64_t{1} << 40) + 12345;
  const Permutation permutation(size, 9);
  for (std::uint64_t i = 0; i < 1000; ++i) EXPECT_LT(permutation(size - 1 - i), size);
  EXPECT_NE(permutation(0), permutation(1));
}

}  // namespace
}  // namespace anabatic::io
