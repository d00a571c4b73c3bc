// SPDX-License-Identifier: Apache-2.0
#include "tensor/half.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>

namespace anabatic {
namespace {

TEST(Half, RoundTripsEveryFiniteValue) {
  for (std::uint32_t bits = 0; bits < 0x10000; ++bits) {
    const auto half = static_cast<std::uint16_t>(bits);
    const float value = half_to_float(half);
    if (std::isnan(value)) {
      EXPECT_TRUE(std::isnan(half_to_float(float_to_half(value))));
    } else {
      ASSERT_EQ(float_to_half(value), half);
    }
  }
}

// The value of every pattern by the definition of the format.
double defined(std::uint32_t bits) {
  const int exponent = static_cast<int>(bits >> 10 & 31);
  const double fraction = bits & 0x3FFu, sign = (bits & 0x8000u) != 0 ? -1 : 1;
  if (exponent == 31)
    return fraction == 0 ? sign * std::numeric_limits<double>::infinity()
                         : std::numeric_limits<double>::quiet_NaN();
  if (exponent == 0) return sign * std::ldexp(fraction, -24);
  return sign * std::ldexp(1024 + fraction, exponent - 25);
}

TEST(Half, HasTheValuesOfItsDefinition) {
  for (std::uint32_t bits = 0; bits < 0x10000; ++bits) {
    const double want = defined(bits);
    const float got = half_to_float(static_cast<std::uint16_t>(bits));
    if (std::isnan(want))
      EXPECT_TRUE(std::isnan(got)) << bits;
    else
      EXPECT_EQ(got, want) << bits;
    EXPECT_EQ(std::signbit(got), (bits & 0x8000u) != 0) << bits;
  }
}

// Between each two neighbours: just below the middle, the middle, just above it.
TEST(Half, RoundsToTheNearerNeighbourAndTiesToEven) {
  constexpr std::uint16_t kInfinity = 0x7C00;
  constexpr float kBeyond = 65536;  // where a value after the largest one would be
  for (std::uint16_t low = 0; low < kInfinity; ++low) {
    const auto high = static_cast<std::uint16_t>(low + 1);
    const float above = high == kInfinity ? kBeyond : half_to_float(high);
    const float middle = (half_to_float(low) + above) / 2;  // exact
    const std::uint16_t even = low % 2 == 0 ? low : high;
    EXPECT_EQ(float_to_half(middle), even) << low;
    EXPECT_EQ(float_to_half(std::nextafter(middle, 0.0f)), low) << low;
    EXPECT_EQ(float_to_half(std::nextafter(middle, kBeyond)), high) << low;
    EXPECT_EQ(float_to_half(-middle), 0x8000u | even) << low;
  }
}

TEST(Half, RoundsToNearestEven) {
  EXPECT_EQ(half_to_float(0x3C00), 1.0f);
  EXPECT_EQ(half_to_float(0x0001), 0x1p-24f);
  EXPECT_EQ(float_to_half(1.0f + 0x1p-11f), 0x3C00);  // a tie goes to the even neighbour
  EXPECT_EQ(float_to_half(1.0f + 3 * 0x1p-11f), 0x3C02);
  EXPECT_EQ(float_to_half(0x1p-25f), 0x0000);
  EXPECT_EQ(float_to_half(3 * 0x1p-25f), 0x0002);
  EXPECT_EQ(float_to_half(65519.0f), 0x7BFF);
  EXPECT_EQ(float_to_half(65520.0f), 0x7C00);
  EXPECT_EQ(float_to_half(-std::numeric_limits<float>::infinity()), 0xFC00);
}

}  // namespace
}  // namespace anabatic
