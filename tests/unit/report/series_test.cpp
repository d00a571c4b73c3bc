// SPDX-License-Identifier: Apache-2.0
#include "report/series.h"

#include <gtest/gtest.h>

#include <limits>

#include "base/json.h"

namespace anabatic::report {
namespace {

TEST(Series, KeepsEveryValueWhileTheyFit) {
  Series series(4);
  for (int step = 3; step <= 6; ++step) series.add(step, 0.5 * step);
  EXPECT_EQ(series.to_json(), OrderedJson({{"first", 3},
                                           {"width", 1},
                                           {"mean", {1.5, 2, 2.5, 3}},
                                           {"gaps", OrderedJson::array()}}));
}

TEST(Series, KeepsTheSmallestAndTheLargestOfABucket) {
  Series series(4);
  for (int step = 1; step <= 1000; ++step)
    series.add(step, step == 700 ? 1e6 : step == 10 ? -5 : 1);
  const OrderedJson json = series.to_json();
  EXPECT_EQ(json["width"], 256);
  ASSERT_EQ(json["mean"].size(), 4u);
  EXPECT_EQ(json["max"], OrderedJson({1, 1, 1000000, 1}));
  EXPECT_EQ(json["min"], OrderedJson({-5, 1, 1, 1}));
  EXPECT_EQ(json["mean"][1], 1);
  EXPECT_EQ(json["mean"][2], 3907.25);
}

TEST(Series, LeavesGapsWhereThereIsNoNumber) {
  Series series(8);
  series.add(1, 1.0);
  series.add(2, std::nullopt);
  series.add(3, std::numeric_limits<double>::infinity());
  series.add(6, 2.0);  // steps 4 and 5 are in no line
  const OrderedJson json = series.to_json();
  EXPECT_EQ(json["mean"], OrderedJson({1, nullptr, nullptr, nullptr, nullptr, 2}));
  EXPECT_EQ(json["gaps"], OrderedJson({1, 2}));
}

TEST(Series, SaysWhichBucketsHideAGap) {
  Series series(2);
  for (int step = 0; step < 4; ++step)
    series.add(step, step == 2 ? std::nullopt : std::optional(1.0));
  const OrderedJson json = series.to_json();
  EXPECT_EQ(json["mean"], OrderedJson({1, 1}));
  EXPECT_EQ(json["gaps"], OrderedJson({1}));
}

TEST(Rounded, KeepsSixDigits) {
  EXPECT_EQ(rounded(1.23456789), 1.23457);
  EXPECT_EQ(rounded(12345678.0), 12345678);
  EXPECT_EQ(rounded(std::nullopt), nullptr);
  EXPECT_EQ(rounded(std::numeric_limits<double>::quiet_NaN()), nullptr);
}

}  // namespace
}  // namespace anabatic::report
