// SPDX-License-Identifier: Apache-2.0
// Encoders of weight grids against their formulas, value by value.
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <limits>
#include <random>
#include <vector>

#include "tensor/grid_elements.h"

namespace anabatic {
namespace {

// Rows of values of many sizes: usual ones, ties, zeroes of both signs, and one large element.
std::vector<std::vector<float>> samples(std::size_t size) {
  std::mt19937 random(7);
  std::normal_distribution<float> normal;
  std::vector<std::vector<float>> rows;
  for (int exponent = -40; exponent <= 8; exponent += 4) {
    std::vector<float>& row = rows.emplace_back(size);
    for (float& value : row) value = std::ldexp(normal(random), exponent);
    std::vector<float> ties(size);
    for (std::size_t i = 0; i < size; ++i)
      ties[i] = std::ldexp(static_cast<float>(static_cast<int>(i) - 9) * 0.5f, exponent);
    rows.push_back(ties);
    ties[3] = std::ldexp(300.0f, exponent);
    rows.push_back(ties);
  }
  rows.emplace_back(size, 0.0f);
  rows.emplace_back(size, -0.0f);
  return rows;
}

// The first element of the largest magnitude.
float largest_of(const std::vector<float>& row) {
  return *std::ranges::max_element(row, {}, [](float value) { return std::abs(value); });
}

float half_of(double value) { return half_to_float(float_to_half(static_cast<float>(value))); }

TEST(WeightGrid, HasNamesThatAreReadBack) {
  for (const GridFormat format : kGridFormats)
    for (const std::int64_t group : kInt4Groups) {
      const WeightGrid grid = weight_grid(format, group);
      EXPECT_EQ(weight_grid_from_string(to_string(grid)), grid);
      EXPECT_EQ(grid_format_from_string(to_string(format)), format);
    }
  EXPECT_EQ(to_string(weight_grid(GridFormat::kInt4Group, 64)), "int4_group_64");
  EXPECT_EQ(weight_grid_from_string("int4_group"), std::nullopt);
  EXPECT_EQ(weight_grid_from_string("q9_0"), std::nullopt);
}

// Steps of the scale in f32, integers by the inverse of it, ties away from zero.
TEST(WeightGrid, RoundsToQ8_0) {
  using Encoder = GridElements<GridFormat::kQ8_0>;
  for (const std::vector<float>& row : samples(32)) {
    const float step = std::abs(largest_of(row)) / 127.0f,
                inverse = step == 0.0f ? 0.0f : 1.0f / step;
    const GridScale scale = Encoder::scale_of(largest_of(row));
    EXPECT_EQ(scale.scale, half_of(step));
    for (const float value : row) {
      const auto code = static_cast<std::int32_t>(std::round(double{value * inverse}));
      EXPECT_EQ(Encoder::element_of(value, scale.rule), code) << value;
      EXPECT_LE(std::abs(code), 127);
      EXPECT_EQ(Encoder::value_of(code, scale.scale), half_of(step) * static_cast<float>(code));
    }
  }
}

// The first largest element is -8 steps; others round by a half that is added.
TEST(WeightGrid, RoundsToQ4_0) {
  using Encoder = GridElements<GridFormat::kQ4_0>;
  for (const std::vector<float>& row : samples(32)) {
    const float step = largest_of(row) / -8.0f, inverse = step == 0.0f ? 0.0f : 1.0f / step;
    const GridScale scale = Encoder::scale_of(largest_of(row));
    EXPECT_EQ(scale.scale, half_of(step));
    for (const float value : row) {
      const auto code = std::min(static_cast<std::int32_t>(std::trunc(value * inverse + 8.5f)), 15);
      EXPECT_EQ(Encoder::element_of(value, scale.rule), code) << value;
      EXPECT_EQ(Encoder::value_of(code, scale.scale), half_of(step) * static_cast<float>(code - 8));
    }
    EXPECT_EQ(Encoder::element_of(largest_of(row), scale.rule), step == 0.0f ? 8 : 0);
  }
}

// The nearest of sixteen values times 2^(floor(log2 m) - 2), ties to the lower code.
TEST(WeightGrid, RoundsToMxfp4) {
  using Encoder = GridElements<GridFormat::kMxfp4>;
  constexpr std::array kValues{0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0};
  for (const std::vector<float>& row : samples(32)) {
    const double largest = std::abs(largest_of(row));
    if (largest == 0) continue;
    const GridScale scale = Encoder::scale_of(largest_of(row));
    const double step = std::exp2(std::floor(std::log2(largest)) - 2);
    EXPECT_EQ(2.0 * scale.scale, step);
    for (const float value : row) {
      std::size_t nearest = 0;
      for (std::size_t i = 1; i < kValues.size(); ++i)
        if (std::abs(std::abs(double{value}) - kValues[i] * step) <
            std::abs(std::abs(double{value}) - kValues[nearest] * step))
          nearest = i;
      const std::int32_t code = Encoder::element_of(value, scale.rule);
      EXPECT_EQ(code & 7, static_cast<int>(nearest)) << value;
      EXPECT_EQ(code >> 3, value < 0 && nearest > 0 ? 1 : 0) << value;
      EXPECT_EQ(double{Encoder::value_of(code, scale.scale)},
                std::copysign(kValues[nearest] * step, code > 7 ? -1.0 : 1.0));
    }
  }
}

// The logarithm is rounded to f32, so a value just below a power of two counts as that power.
TEST(WeightGrid, TakesExponentsOfRoundedLogarithms) {
  const auto expected = [](float value) {
    const double power = std::floor(static_cast<float>(std::log2(double{value})));
    return static_cast<int>(std::clamp(power + 125.0, 0.0, 252.0));
  };
  for (int exponent = -126; exponent <= 87; ++exponent)
    for (std::uint32_t below = 0; below < 512; ++below) {
      const float power = std::ldexp(1.0f, exponent);
      for (const float value : {std::bit_cast<float>(std::bit_cast<std::uint32_t>(power) - below),
                                std::bit_cast<float>(std::bit_cast<std::uint32_t>(power) + below)})
        ASSERT_EQ(int{e8m0_of(value)}, expected(value)) << value;
    }
  EXPECT_EQ(e8m0_of(0.0f), 0);
  EXPECT_EQ(e8m0_of(std::numeric_limits<float>::max()), 252);
}

// compressed-tensors: bf16 scales of the largest magnitude over half the range, ties to even.
template <GridFormat kFormat>
void expect_integers(double range) {
  using Encoder = GridElements<kFormat>;
  for (const std::vector<float>& row : samples(64)) {
    const float largest = std::abs(largest_of(row));
    const float scale = to_float(to_bfloat16(largest / static_cast<float>(range / 2)));
    const GridScale found = Encoder::scale_of(largest_of(row));
    EXPECT_EQ(found.scale, scale);
    for (const float value : row) {
      const double steps = scale == 0.0f ? 0.0 : double{value / scale};
      const double code = std::clamp(std::nearbyint(steps), -(range + 1) / 2, (range + 1) / 2 - 1);
      EXPECT_EQ(double{static_cast<float>(Encoder::element_of(value, found.rule))}, code) << value;
      EXPECT_EQ(Encoder::value_of(static_cast<std::int32_t>(code), scale),
                scale * static_cast<float>(code));
    }
  }
}

TEST(WeightGrid, RoundsToIntegersOfCompressedTensors) {
  expect_integers<GridFormat::kInt8Channel>(255);
  expect_integers<GridFormat::kInt4Group>(15);
}

}  // namespace
}  // namespace anabatic
