// SPDX-License-Identifier: Apache-2.0
// Planted faults: a comparator that lets one of these pass proves nothing anywhere else.
#include "support/comparator.h"

#include <fmt/core.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <tuple>

#include "support/random_data.h"
#include "support/tolerance.h"

namespace anabatic::testing {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

constexpr double kNaN = std::numeric_limits<double>::quiet_NaN();
constexpr double kInfinity = std::numeric_limits<double>::infinity();

Values matrix(std::int64_t num_rows, std::int64_t num_columns) {
  return random_values(tensor_type(DType::kFloat32, {num_rows, num_columns}), Regime::kBounded, 7,
                       0);
}

// One rounding of every value.
std::vector<double> one_rounding(const Values& want) {
  std::vector<double> tolerances;
  for (const double value : want.data)
    tolerances.push_back(unit_roundoff(DType::kFloat32) * std::abs(value));
  return tolerances;
}

std::string report(const Values& got, const Values& want) {
  return compare(got, want, one_rounding(want), {.repro = "ops_test --seed=7"}).report;
}

// Elements and scales that are not 0. Their dtypes hold one more than each of them, too.
Values quantized_values(std::string_view type) {
  Values values{parse_tensor_type(type), {}};
  for (std::int64_t i = 0; i < values.type.num_elements(); ++i)
    values.data.push_back(static_cast<double>(1 + i % 100));
  for (std::int64_t i = 0; i < scales_type(values.type).num_elements(); ++i)
    values.data.push_back(0.5 + static_cast<double>(i));
  return values;
}

TEST(Comparator, AcceptsEqualValues) {
  const Values want = matrix(5, 7);
  EXPECT_EQ(report(want, want), "");
}

TEST(Comparator, AcceptsAnErrorAsLargeAsTheToleranceOnEitherSide) {
  const Values want{tensor_type(DType::kFloat64, {2}), {1.0, -1.0}};
  const std::vector<double> tolerance{0.25, 0.25};
  for (const double sign : {1.0, -1.0}) {
    const Values inside{want.type, {1.0 + sign * 0.25, -1.0 + sign * 0.25}};
    EXPECT_TRUE(compare(inside, want, tolerance)) << sign;
    const Values outside{want.type, {1.0 + sign * 0.26, -1.0 + sign * 0.26}};
    EXPECT_THAT(compare(outside, want, tolerance).report, HasSubstr("2 of 2")) << sign;
  }
}

TEST(Comparator, RefusesAFlippedSign) {
  const Values want = matrix(5, 7);
  Values got = want;
  got.data[11] = -got.data[11];
  EXPECT_THAT(report(got, want), HasSubstr("1 of 35 values differ; worst at [1,4] (flat 11)"));
  for (double& value : got.data) value = -value;
  EXPECT_THAT(report(got, want), HasSubstr("of 35 values differ"));
}

TEST(Comparator, RefusesNaNAndInfinity) {
  const Values want = matrix(3, 3);
  for (const double planted : {kNaN, -kNaN, kInfinity, -kInfinity}) {
    Values got = want;
    got.data[4] = planted;
    EXPECT_THAT(report(got, want), HasSubstr("1 of 9")) << planted;
    EXPECT_THAT(report(want, got), HasSubstr("1 of 9")) << "wanted " << planted;
  }
  Values both = want;
  both.data[4] = kNaN;
  EXPECT_THAT(report(both, both), HasSubstr("1 of 9"));
}

TEST(Comparator, RefusesNaNWhateverTheTolerance) {
  const Values want = matrix(2, 2);
  Values got = want;
  got.data[0] = kNaN;
  EXPECT_FALSE(compare(got, want, std::vector<double>(4, kInfinity)));
  EXPECT_FALSE(compare(want, want, std::vector<double>(4, kNaN)));
}

TEST(Comparator, AcceptsAWantedInfinityOfTheSameSignOnly) {
  const Values want{tensor_type(DType::kFloat32, {2}), {-kInfinity, 1.0}};
  const std::vector<double> tolerance(2, 0.0);
  EXPECT_TRUE(compare(want, want, tolerance));
  const Values other{want.type, {kInfinity, 1.0}};
  EXPECT_FALSE(compare(other, want, tolerance));
}

TEST(Comparator, RefusesATransposedMatrix) {
  const Values want = matrix(6, 6);
  Values got = want;
  for (std::size_t i = 0; i < 6; ++i)
    for (std::size_t j = 0; j < 6; ++j) got.data[i * 6 + j] = want.data[j * 6 + i];
  EXPECT_THAT(report(got, want), HasSubstr("30 of 36"));
}

TEST(Comparator, RefusesRowsThatAreOffByOne) {
  const Values want = matrix(8, 3);
  Values got = want;
  std::rotate(got.data.begin(), got.data.begin() + 3, got.data.end());
  EXPECT_THAT(report(got, want), HasSubstr("24 of 24"));
}

TEST(Comparator, RefusesAnAllZeroOutputEvenWithinTolerance) {
  const Values want = matrix(4, 4);
  Values got = want;
  for (double& value : got.data) value = 0;
  EXPECT_THAT(compare(got, want, std::vector<double>(16, 100.0)).report, HasSubstr("zero trust"));
  EXPECT_THAT(report(got, want), HasSubstr("16 of 16"));
}

TEST(Comparator, RefusesWantedValuesThatAreMostlyZero) {
  const Values zeros{tensor_type(DType::kFloat32, {10}), std::vector<double>(10, 0.0)};
  EXPECT_THAT(report(zeros, zeros), HasSubstr("proves nothing"));
  EXPECT_TRUE(compare(zeros, zeros, std::vector<double>(10, 0.0), {.zeros_expected = true}));
}

TEST(Comparator, RefusesAnotherDtypeOrShape) {
  const Values want = matrix(4, 3);
  Values got = want;
  got.type.dtype = DType::kBFloat16;
  EXPECT_THAT(report(got, want), HasSubstr("expected f32[4,3], got bf16[4,3]"));
  got.type = tensor_type(DType::kFloat32, {3, 4});
  EXPECT_THAT(report(got, want), HasSubstr("got f32[3,4]"));
}

TEST(Comparator, ReportsBothValuesToleranceUlpsAndRepro) {
  const Values want{tensor_type(DType::kFloat32, {2}), {1.0, 2.0}};
  const Values got{want.type, {1.0, 2.0 + 0x1p-20}};
  const std::string text = report(got, want);
  for (const char* part : {"got 2.00000095", "want 2", "tolerance 1.19e-07", "4 ULPs of f32",
                           "repro: ops_test --seed=7"})
    EXPECT_THAT(text, HasSubstr(part));
}

TEST(Comparator, CountsUlpsAcrossZero) {
  EXPECT_EQ(ulp_distance(0.0, -0.0, DType::kFloat32), 0);
  EXPECT_EQ(ulp_distance(0x1p-149, -0x1p-149, DType::kFloat32), 2);
  EXPECT_EQ(ulp_distance(1.0, 1.0078125, DType::kBFloat16), 1);
  EXPECT_EQ(ulp_distance(-1.0, -1.0 - 0x1p-52, DType::kFloat64), 1);
}

TEST(Comparator, ComparesBits) {
  HostTensor want(matrix(3, 5));
  HostTensor got = want.clone();
  EXPECT_TRUE(compare_bits(got, want));
  got.set(8, got.get(8) * (1 + 2 * unit_roundoff(DType::kFloat32)));
  EXPECT_THAT(compare_bits(got, want).report, HasSubstr("1 of 15 values have other bits; first at "
                                                        "[1,3] (flat 8)"));
}

TEST(Comparator, RefusesAnotherElementOrScaleOfAQuantizedTensor) {
  for (const char* type :
       {"i8_bf16_1x4[3,10]", "dynamic8_f32_16x16[20,17]", "udynamic8_f32_16x16[2,20,17]@panels"}) {
    SCOPED_TRACE(type);
    const HostTensor want(quantized_values(type));
    const Values wants = want.values();
    EXPECT_EQ(compare_bits(want.clone(), want).report, "");
    for (std::int64_t i = 0; i < want.size(); ++i) {
      HostTensor got = want.clone();
      got.set(i, want.get(i) + 1);
      const std::int64_t scale = i - want.type().num_elements();
      std::string place = fmt::format("(flat {})", i);
      if (scale >= 0) place = fmt::format("scale {} {}", scale, place);
      const auto names_it =
          AllOf(HasSubstr(fmt::format("1 of {} values", want.size())), HasSubstr(place));
      EXPECT_THAT(compare_bits(got, want).report, names_it);
      EXPECT_THAT(compare(got.values(), wants, one_rounding(wants)).report, names_it);
    }
  }
}

TEST(Comparator, RefusesAnotherBlockFormat) {
  const HostTensor want(quantized_values("i8_bf16_1x4[3,10]"));
  const HostTensor got(quantized_values("i8_bf16_1x5[3,10]"));
  EXPECT_THAT(compare_bits(got, want).report,
              HasSubstr("expected i8_bf16_1x4[3,10], got i8_bf16_1x5[3,10]"));
}

// 30 elements, then bytes of no value up to the scales.
TEST(Comparator, LooksAtNoBytesBetweenElementsAndScales) {
  const HostTensor want(quantized_values("i8_bf16_1x4[3,10]"));
  const HostTensor got = want.clone();
  got.view().data[30] = std::byte{1};
  EXPECT_EQ(compare_bits(got, want).report, "");
}

TEST(Comparator, CountsZeroesOfElementsAndOfScalesApart) {
  const Values whole = quantized_values("i8_bf16_1x16[10,16]");
  for (const auto& [what, begin, end] : {std::tuple{"elements", 0, 160}, {"scales", 160, 170}}) {
    SCOPED_TRACE(what);
    Values zeroed = whole;
    std::fill(zeroed.data.begin() + begin, zeroed.data.begin() + end, 0.0);
    const std::string all = fmt::format("{0} of {0} ", end - begin);
    EXPECT_THAT(compare_bits(HostTensor(zeroed), HostTensor(zeroed)).report,
                HasSubstr(all + "wanted " + what + " are 0"));
    EXPECT_TRUE(compare_bits(HostTensor(zeroed), HostTensor(zeroed), {.zeros_expected = true}));
    EXPECT_THAT(compare(zeroed, whole, std::vector<double>(whole.data.size(), 100.0)).report,
                HasSubstr("zero trust: got is 0 for " + all + what));
  }
}

TEST(GuardedBytes, ShowsAWriteOnEitherSide) {
  for (const std::ptrdiff_t offset : {-1, 12}) {
    const GuardedBytes bytes(12);
    EXPECT_TRUE(bytes.guards_intact());
    bytes.data()[offset] = std::byte{0};
    EXPECT_FALSE(bytes.guards_intact()) << offset;
  }
}

TEST(Tolerance, GrowsWithTheSumAndTheRoundoff) {
  EXPECT_LT(gamma(10, DType::kFloat32), gamma(11, DType::kFloat32));
  EXPECT_GE(gamma(1, DType::kFloat32), unit_roundoff(DType::kFloat32));
  EXPECT_EQ(unit_roundoff(DType::kInt32), 0);
  EXPECT_LT(parity_bounds(2, 64, DType::kFloat32).logits, 1e-4);
  EXPECT_LT(parity_bounds(2, 64, DType::kBFloat16).logits, 0.1);
}

// A product that drops one of its 64 terms must not hide in the bound.
TEST(Tolerance, IsSmallerThanOneDroppedTerm) {
  const OpCall call{
      .op = "linear",
      .attributes = {},
      .inputs = {random_values(tensor_type(DType::kFloat32, {1, 64}), Regime::kBounded, 3, 0),
                 random_values(tensor_type(DType::kFloat32, {1, 64}), Regime::kBounded, 3, 1)},
      .outputs = {tensor_type(DType::kFloat32, {1, 1})}};
  const double tolerance = output_tolerances(call, run_in_double(call))[0][0];
  for (std::size_t k = 0; k < 64; ++k)
    EXPECT_LT(tolerance, std::abs(call.inputs[0].data[k] * call.inputs[1].data[k])) << k;
}

}  // namespace
}  // namespace anabatic::testing
