// SPDX-License-Identifier: Apache-2.0
#include "tensor/split_float.h"

#include <gtest/gtest.h>

#include <cmath>

#include "support/tolerance.h"
#include "tensor/stochastic_rounding.h"

namespace anabatic {
namespace {

constexpr std::uint64_t kPatterns = std::uint64_t{1} << 32;

// There are as many pairs of 16 bits as floats, and every float comes back from its own. Integers
// all the way, so that the compiler vectorises it.
TEST(SplitFloat, IsABijectionOfAllPatterns) {
  std::uint32_t differences = 0;
  for (std::uint64_t i = 0; i < kPatterns; ++i) {
    const auto bits = static_cast<std::uint32_t>(i);
    const SplitFloat halves = split_float(std::bit_cast<float>(bits));
    differences |= std::bit_cast<std::uint32_t>(merge_float(halves)) ^ bits;
  }
  EXPECT_EQ(differences, 0u);
}

TEST(SplitFloat, HasTheRoundedWeightAsItsUpperHalf) {
  std::uint32_t differences = 0;
  for (std::uint64_t i = 0; i < kPatterns; ++i) {
    const auto bits = static_cast<std::uint32_t>(i);
    const float value = std::bit_cast<float>(bits);
    const std::uint32_t difference = static_cast<std::uint32_t>(split_float(value).high.bits ^
                                                                to_bfloat16_half_away(value).bits);
    differences |= (bits & 0x7FFFFFFFu) > 0x7F800000u ? 0u : difference;
  }
  EXPECT_EQ(differences, 0u);
  // What arithmetic makes of invalid operations stays a NaN.
  for (const std::uint32_t bits : {0x7FC00000u, 0xFFC00000u})
    EXPECT_TRUE(std::isnan(to_float(split_float(std::bit_cast<float>(bits)).high)));
}

TEST(StochasticRounding, KeepsWhatBf16HoldsAndGoesToANeighbourOtherwise) {
  const RoundingKey key = rounding_key(3, 5);
  for (std::uint32_t i = 0; i < 1000; ++i) {
    const auto draw = static_cast<std::uint16_t>(rounding_word(key, i));
    for (const float value : {0.0f, 1.5f, -3.0f, 0x1p-130f})
      EXPECT_EQ(to_float(to_bfloat16_stochastic(value, draw)), value);
    const float got = to_float(to_bfloat16_stochastic(-1.003f, draw));
    EXPECT_TRUE(got == -1.0f || got == -1.0078125f) << got;
  }
}

TEST(StochasticRounding, IsUnbiased) {
  constexpr std::uint32_t kCount = 1 << 20;
  constexpr double kStep = 0x1p-7;
  for (const double share : {0.1, 0.5, 0.93}) {
    const auto value = static_cast<float>(1 + share * kStep);
    for (const int shift : {0, 16}) {
      double sum = 0;
      const RoundingKey key = rounding_key(11, 2);
      for (std::uint32_t i = 0; i < kCount; ++i)
        sum += to_float(to_bfloat16_stochastic(
            value, static_cast<std::uint16_t>(rounding_word(key, i) >> shift)));
      EXPECT_LE(std::abs(sum / kCount - value), testing::mean_of_roundings_tolerance(kStep, kCount))
          << share << ", half " << shift;
    }
  }
}

// Over steps too: an element must not always go the same way.
TEST(StochasticRounding, IsUnbiasedOverStepsAndStreams) {
  constexpr int kCount = 1 << 14;
  constexpr double kStep = 0x1p-7;
  const auto value = static_cast<float>(1 + 0.3 * kStep);
  for (const bool over_steps : {true, false}) {
    double sum = 0;
    for (int i = 0; i < kCount; ++i)
      sum += to_float(to_bfloat16_stochastic(
          value, static_cast<std::uint16_t>(
                     rounding_word(over_steps ? rounding_key(9, i) : rounding_key(i, 9), 17))));
    EXPECT_LE(std::abs(sum / kCount - value), testing::mean_of_roundings_tolerance(kStep, kCount));
  }
}

}  // namespace
}  // namespace anabatic
