// SPDX-License-Identifier: Apache-2.0
// Which elements dropout keeps: as many as the rate says, independently of others, and the same for
// every cut of a step.
#include "spec/dropout.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>

#include "base/philox.h"
#include "ops/run_all.h"
#include "support/random_data.h"
#include "support/tolerance.h"

namespace anabatic::testing {
namespace {

constexpr std::uint64_t kSeed = 7;

struct Drop {
  double rate = 0.25;
  std::string site = "layers.0.mlp";
  std::uint64_t seed = kSeed;
  std::int64_t step = 1, first_row = 0;
};

Values ones(std::int64_t rows, std::int64_t width, DType dtype = DType::kFloat32) {
  Values x{.type = tensor_type(dtype, {rows, width})};
  x.data.assign(static_cast<std::size_t>(rows * width), 1);
  return x;
}

std::vector<double> dropped(const Values& x, const Drop& drop) {
  Values draws{.type = tensor_type(DType::kInt32, {spec::kNumDropoutDraws})};
  for (const std::int32_t draw : spec::dropout_draws(drop.seed, drop.step, drop.first_row))
    draws.data.push_back(draw);
  const auto results = run_all(
      {"dropout", {{"rate", drop.rate}, {"site", drop.site}}, {x, std::move(draws)}, {x.type}});
  for (const std::vector<Values>& result : results)
    EXPECT_EQ(result[0].data, results.back()[0].data) << "a row and ref, which is the last";
  return results.front()[0].data;
}

double count_kept(const std::vector<double>& y) {
  return static_cast<double>(y.size()) - static_cast<double>(std::ranges::count(y, 0.0));
}

TEST(Dropout, KeepsAsManyElementsAsTheRateSaysAndTheMeanOfAll) {
  for (const double rate : {0.1, 0.5, 0.9, 1.0 / spec::kDropoutSteps}) {
    const std::vector<double> y = dropped(ones(400, 1000), {.rate = rate});
    const auto count = static_cast<double>(y.size());
    const double kept =
        1 - static_cast<double>(spec::dropout_threshold(rate)) / spec::kDropoutSteps;
    EXPECT_LE(std::abs(count_kept(y) - count * kept), event_count_tolerance(count, kept)) << rate;
    double sum = 0;
    for (const double value : y) sum += value;
    EXPECT_LE(std::abs(sum * kept - count * kept), event_count_tolerance(count, kept)) << rate;
  }
}

// Pairs of draws are kept together as often as independent ones are.
TEST(Dropout, DrawsIndependentlyForSitesStepsSeedsRowsAndColumns) {
  const Values x = ones(256, 1024);
  const Drop drop{.rate = 0.5};
  const std::vector<double> y = dropped(x, drop);
  const auto expect_independent = [&](const std::vector<double>& other, const char* what) {
    double both = 0, count = 0;
    for (std::size_t i = 0; i < other.size(); ++i, ++count) both += y[i] != 0 && other[i] != 0;
    EXPECT_LE(std::abs(both - count / 4), event_count_tolerance(count, 0.25)) << what;
  };
  expect_independent(dropped(x, {.rate = 0.5, .site = "layers.1.mlp"}), "another site");
  expect_independent(dropped(x, {.rate = 0.5, .step = 2}), "another step");
  expect_independent(dropped(x, {.rate = 0.5, .seed = kSeed + 1}), "another seed");
  for (const std::ptrdiff_t distance : {1, 2, 16, 31, 32, 64, 127, 128, 1024, 32768})
    expect_independent({y.begin() + distance, y.end()}, "another element");
}

TEST(Dropout, OfPartsOfAStepHasTheBitsOfTheWhole) {
  for (const DType dtype : {DType::kFloat32, DType::kBFloat16}) {
    const std::int64_t width = 200;
    const Values x = ones(24, width, dtype);
    const std::vector<double> whole = dropped(x, {});
    for (const std::int64_t rows : {1, 8, 12})
      for (std::int64_t first = 0; first < 24; first += rows) {
        const std::vector<double> part = dropped(ones(rows, width, dtype), {.first_row = first});
        EXPECT_TRUE(std::equal(part.begin(), part.end(), whole.begin() + first * width))
            << rows << " rows from " << first;
      }
  }
}

TEST(Dropout, WithASmallerRateKeepsAllThatALargerOneKeeps) {
  const Values x = ones(64, 512);
  std::vector<double> before = dropped(x, {.rate = 0.05});
  for (const double rate : {0.1, 0.3, 0.8}) {
    const std::vector<double> after = dropped(x, {.rate = rate});
    for (std::size_t i = 0; i < after.size(); ++i)
      ASSERT_TRUE(after[i] == 0 || before[i] != 0) << "element " << i << " at " << rate;
    EXPECT_LT(count_kept(after), count_kept(before));
    before = after;
  }
}

// What is dropped may be anything: it leaves no NaN.
TEST(Dropout, LeavesZeroOfWhatIsNotFinite) {
  Values x = ones(8, 256);
  const std::vector<double> y = dropped(x, {});
  for (std::size_t i = 0; i < y.size(); ++i)
    if (y[i] == 0) x.data[i] = i % 2 == 0 ? NAN : INFINITY;
  EXPECT_EQ(dropped(x, {}), y);
}

}  // namespace
}  // namespace anabatic::testing
