// SPDX-License-Identifier: Apache-2.0
#include "spec/step.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "anabatic/error.h"

namespace anabatic::spec {
namespace {

using ::testing::HasSubstr;
using ::testing::ThrowsMessage;

// Gradients assigned by the first micro-batch, added to by the others.
VariantPlaces training() {
  return {{Action::kForward, {kEveryPlace}},
          {Action::kBackward, {kLeafBegins, kEveryPlace - kLeafBegins}},
          {Action::kUpdate, {kEveryPlace}}};
}

TEST(Places, AreASet) {
  EXPECT_EQ(kLeafBegins & kStepEnds, Places{Place::kOnly});
  EXPECT_EQ(kLeafBegins | kStepEnds, (Places{Place::kOnly, Place::kFirst, Place::kLast}));
  EXPECT_EQ(kEveryPlace - kStepEnds, (Places{Place::kFirst, Place::kMiddle}));
  EXPECT_TRUE(Places{}.is_empty());
  EXPECT_EQ(to_string(kStepEnds), "only, last");
}

TEST(StepSchedule, RunsForwardAndBackwardOfEachMicroBatchThenTheUpdate) {
  EXPECT_EQ(to_string(step_schedule(training(), 1)), "forward 0, backward 0, update");
  EXPECT_EQ(to_string(step_schedule(training(), 3)),
            "forward 0, backward 0, forward 1, backward 1:1, forward 2, backward 2:1, update");
  EXPECT_EQ(step_schedule(training(), 3).back(), (StepEntry{Action::kUpdate, 2, 0}));
  // Each leaf begins with an assignment, and is added to the levels that it completes.
  EXPECT_EQ(to_string(step_schedule(training(), 4, 4)),
            "forward 0, backward 0, sum_leaf 0, forward 1, backward 1, sum_leaf 1:1, "
            "forward 2, backward 2, sum_leaf 2, forward 3, backward 3, update");
  EXPECT_EQ(to_string(step_schedule(training(), 4, 2)),
            "forward 0, backward 0, forward 1, backward 1:1, sum_leaf 1, "
            "forward 2, backward 2, forward 3, backward 3:1, update");
}

TEST(StepSchedule, HasTheActionsThatThereAre) {
  EXPECT_EQ(to_string(step_schedule({{Action::kForward, {kEveryPlace}}}, 2)),
            "forward 0, forward 1");
  EXPECT_EQ(to_string(step_schedule({{Action::kUpdate, {kEveryPlace}}}, 1)), "update");
}

TEST(StepSchedule, HasAVariantForEachPlace) {
  VariantPlaces variants = training();
  variants[Action::kForward] = {{Place::kLast}, {Place::kFirst}, {Place::kMiddle}, {Place::kOnly}};
  EXPECT_EQ(to_string(step_schedule(variants, 3)),
            "forward 0:1, backward 0, forward 1:2, backward 1:1, forward 2, backward 2:1, update");
  EXPECT_EQ(to_string(step_schedule(variants, 1)), "forward 0:3, backward 0, update");
}

TEST(StepSchedule, RefusesStepsThatWereNotPlanned) {
  VariantPlaces variants = training();
  variants[Action::kForward] = {{Place::kOnly}};
  EXPECT_THAT([&] { step_schedule(variants, 2); },
              ThrowsMessage<InvalidArgument>(
                  HasSubstr("expected a step with micro-batches as planned (only), got the first "
                            "one of 2")));
  EXPECT_THAT([&] { step_schedule(variants, 0); },
              ThrowsMessage<InvalidArgument>(HasSubstr("at least one micro-batch, got 0")));
  EXPECT_THAT([&] { step_entry({}, Action::kBackward, 0, 1); },
              ThrowsMessage<InvalidArgument>(HasSubstr("action of the program, got backward")));
}

}  // namespace
}  // namespace anabatic::spec
