// SPDX-License-Identifier: Apache-2.0
// Wrong schedules of right programs, and wrong programs under right schedules.
#include "runtime/verify_schedule.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "anabatic/error.h"

namespace anabatic::runtime {
namespace {

using spec::Place;
using spec::Places;
using ::testing::HasSubstr;
using ::testing::ThrowsMessage;

constexpr std::int32_t kForwardCall = 0, kAssign = 1, kAdd = 2, kUpdateCall = 3;

// A forward, a backward that assigns or adds to one gradient, and an update that reads it and a
// state on disk. The first micro-batch of several has a layout of its own.
Program training_program() {
  Program program;
  const TensorType type = tensor_type(DType::kFloat32, {4});
  const Operand gradient{.arena = Arena::kGradient, .state = 0, .type = type};
  const Operand value{.arena = Arena::kFrame, .type = type};
  program.gradients = {intern("gradients.w")};
  program.states.push_back({.name = intern("first_moment.w"), .type = type, .is_on_disk = true});
  program.windows.push_back({.state = 0});
  program.layouts.resize(2);
  program.calls = {{.outputs = {value}, .adds = {false}, .label = "forward"},
                   {.inputs = {value}, .outputs = {gradient}, .adds = {false}, .label = "assign"},
                   {.inputs = {value}, .outputs = {gradient}, .adds = {true}, .label = "add"},
                   {.inputs = {gradient}, .label = "update"}};
  const Places others = spec::kEveryPlace - Places{Place::kFirst};
  program.variants[Action::kForward] = {
      {.places = others, .calls = {kForwardCall}},
      {.places = {Place::kFirst}, .layout = 1, .calls = {kForwardCall}}};
  const SwapPoint read{1, SwapStep::kRead, 0};
  program.variants[Action::kBackward] = {
      {.places = {Place::kOnly}, .calls = {kAssign}, .swap_points = {read}},
      {.places = {Place::kMiddle}, .calls = {kAdd}},
      {.places = {Place::kLast}, .calls = {kAdd}, .swap_points = {read}},
      {.places = {Place::kFirst}, .layout = 1, .calls = {kAssign}}};
  program.variants[Action::kUpdate] = {
      {.places = spec::kEveryPlace,
       .updates = true,
       .calls = {kUpdateCall},
       .swap_points = {{0, SwapStep::kAwaitRead, 0}, {1, SwapStep::kWrite, 0}}}};
  return program;
}

class ScheduleFault : public ::testing::Test {
 protected:
  void expect(const std::string& rule) {
    EXPECT_THAT([&] { verify_schedule(program_, schedule_); },
                ThrowsMessage<InternalError>(HasSubstr("[schedule verifier] " + rule)));
  }
  StepEntry& entry(std::size_t i) { return schedule_.at(i); }

  Program program_ = training_program();
  // Forward and backward 0 to 2 are entries 0 to 5, the update is entry 6.
  std::vector<StepEntry> schedule_ = spec::step_schedule(variant_places(program_), 3);
};

TEST_F(ScheduleFault, IsNoneInStepsOfAnyLength) {
  for (const std::int64_t count : {1, 2, 3, 8})
    EXPECT_EQ(schedule_of(program_, count).size(), static_cast<std::size_t>(2 * count + 1));
}

// As those that make packings from parameters, and forwards that nothing follows.
TEST_F(ScheduleFault, IsNoneInProgramsOfOneAction) {
  for (const Action action : {Action::kForward, Action::kUpdate}) {
    Program program;
    program.variants[action] = {
        {.places = spec::kEveryPlace, .updates = action == Action::kUpdate}};
    EXPECT_EQ(schedule_of(program, 3).size(), action == Action::kForward ? 3u : 1u);
  }
}

TEST_F(ScheduleFault, AVariantThatThereIsNot) {
  entry(2).variant = 2;
  expect("every entry has its variant: forward 1:2 is one of 2");
  program_.variants.erase(Action::kForward);
  expect("every entry has its variant: forward 0:1 is one of 0");
}

TEST_F(ScheduleFault, ABackwardAheadOfItsForward) {
  std::swap(entry(2), entry(3));
  expect("each forward is followed by its backward: backward 1:1 comes after 1 forwards");
}

TEST_F(ScheduleFault, TwoForwardsInARow) {
  std::swap(entry(1), entry(2));
  expect("each forward is followed by its backward: forward 1 comes between");
}

TEST_F(ScheduleFault, AMicroBatchThatIsLeftOut) {
  schedule_.erase(schedule_.begin() + 2, schedule_.begin() + 4);
  expect("micro-batches in their order: forward 2 comes as number 1");
}

TEST_F(ScheduleFault, ABackwardThatIsLeftOut) {
  schedule_.erase(schedule_.begin() + 5);
  expect("the update after all micro-batches: micro-batch 2 has no backward");
  schedule_.pop_back();
  expect("each forward is followed by its backward: of micro-batch 2 there is none");
}

TEST_F(ScheduleFault, ABackwardOfAnotherLayout) {
  entry(0).variant = 0;
  expect("a backward of its forward's layout: backward 0:3 is of 1, its forward of 0");
}

TEST_F(ScheduleFault, AnUpdateAheadOfTheLastMicroBatch) {
  std::rotate(schedule_.begin() + 4, schedule_.end() - 1, schedule_.end());
  expect("the update after all micro-batches: it is that of micro-batch 2 of 2");
  entry(4).micro_batch = 1;
  entry(3).variant = 2;
  expect("nothing follows the update: forward 2");
}

TEST_F(ScheduleFault, AnUpdateThatIsLeftOutOrRunsTwice) {
  schedule_.push_back(schedule_.back());
  expect("nothing follows the update: update");
  schedule_.resize(6);
  expect("a step ends with its update");
}

TEST_F(ScheduleFault, AGradientThatIsAssignedAgain) {
  entry(5).variant = 0;
  expect("gradients assigned once: gradients.w: assign in backward 2 overwrites what was added");
}

TEST_F(ScheduleFault, AGradientThatIsAddedToWhatTheLastStepLeft) {
  entry(0).variant = 0;
  entry(1).variant = 1;
  expect("gradients assigned before they are added to: gradients.w: add in backward 0:1");
}

TEST_F(ScheduleFault, AnUpdateOfAGradientThatNothingMakes) {
  program_.variants.erase(Action::kBackward);
  program_.variants[Action::kUpdate][0].swap_points.clear();
  schedule_ = spec::step_schedule(variant_places(program_), 1);
  expect("gradients assigned before they are read: gradients.w: update in update");
}

// The gradient is exchanged from its last contribution to the update.
class ExchangeFault : public ScheduleFault {
 protected:
  ExchangeFault() {
    program_.exchanges.push_back(
        {.buffer = program_.calls[kAdd].outputs.front(), .label = "all_reduce"});
    for (const std::size_t ends_a_step : {0, 2})
      program_.variants[Action::kBackward][ends_a_step].exchange_points = {
          {1, ExchangeStep::kPost, 0}};
    await() = {{0, ExchangeStep::kAwait, 0}};
  }
  std::vector<ExchangePoint>& post() {
    return program_.variants[Action::kBackward][2].exchange_points;
  }
  std::vector<ExchangePoint>& await() {
    return program_.variants[Action::kUpdate][0].exchange_points;
  }
};

TEST_F(ExchangeFault, IsNoneInStepsOfAnyLength) {
  for (const std::int64_t count : {1, 2, 3, 8}) (void)schedule_of(program_, count);
}

TEST_F(ExchangeFault, AReaderAheadOfTheAwait) {
  await()[0].call = 1;
  expect("no call uses what ranks exchange: gradients.w: update in update");
}

TEST_F(ExchangeFault, AContributionBehindThePost) {
  post()[0].call = 0;
  expect("no call uses what ranks exchange: gradients.w: add in backward 2");
}

TEST_F(ExchangeFault, AnAwaitThatIsLeftOut) {
  program_.calls[kUpdateCall].inputs.clear();
  await().clear();
  expect("every exchange is awaited");
}

TEST_F(ExchangeFault, APostThatIsLeftOutOrComesTwice) {
  post().clear();
  expect("exchanges awaited after their post: all_reduce in update");
  post() = {{1, ExchangeStep::kPost, 0}, {1, ExchangeStep::kPost, 0}};
  expect("exchanges posted in one order: all_reduce comes after number 0");
}

TEST_F(ExchangeFault, AGradientThatIsExchangedInTwoMicroBatches) {
  program_.variants[Action::kBackward][1].exchange_points = {{0, ExchangeStep::kPost, 0},
                                                             {0, ExchangeStep::kAwait, 0}};
  schedule_ = spec::step_schedule(variant_places(program_), 3);
  expect("gradients exchanged once: all_reduce in backward 2");
}

// Two exchanges of activations, in every micro-batch: from the forward into the backward.
class ActivationExchangeFault : public ScheduleFault {
 protected:
  ActivationExchangeFault() {
    for (const char* label : {"dispatch", "combine"}) {
      program_.exchanges.push_back({.kind = comm::ExchangeKind::kExchangeRows, .label = label});
      program_.exchanges.back().buffer.state = -1;
    }
    for (Variant& variant : program_.variants[Action::kForward])
      variant.exchange_points = {{0, ExchangeStep::kPost, 0}, {0, ExchangeStep::kPost, 1}};
    for (Variant& variant : program_.variants[Action::kBackward])
      variant.exchange_points = {{0, ExchangeStep::kAwait, 1}, {1, ExchangeStep::kAwait, 0}};
  }
};

TEST_F(ActivationExchangeFault, IsNoneInStepsOfAnyLength) {
  for (const std::int64_t count : {1, 2, 3, 8}) (void)schedule_of(program_, count);
}

TEST_F(ActivationExchangeFault, AnAwaitThatIsLeftOutOfAMicroBatch) {
  program_.variants[Action::kBackward][1].exchange_points.pop_back();
  expect("every exchange is awaited: dispatch is under way when forward");
}

TEST_F(ActivationExchangeFault, PostsInAnotherOrder) {
  std::swap(program_.variants[Action::kForward][0].exchange_points[0].exchange,
            program_.variants[Action::kForward][0].exchange_points[1].exchange);
  expect("exchanges posted in one order: dispatch comes after number 1 in forward 1");
}

TEST_F(ExchangeFault, AGradientThatNothingMakes) {
  program_.calls[kAdd].outputs.clear();
  program_.calls[kAssign].outputs.clear();
  program_.calls[kAdd].adds.clear();
  program_.calls[kAssign].adds.clear();
  expect("gradients assigned before they are exchanged: gradients.w");
}

TEST_F(ScheduleFault, AStateThatIsNotBroughtFromDisk) {
  entry(5).variant = 1;  // of a micro-batch that others follow
  expect("states on disk are read before use: first_moment.w in update");
}

TEST_F(ScheduleFault, AStateThatIsBroughtTwice) {
  entry(3).variant = 2;
  expect("states on disk are read once: first_moment.w in backward 2:2 again");
}

TEST_F(ScheduleFault, AStateThatDoesNotGoBack) {
  program_.variants[Action::kUpdate][0].swap_points.pop_back();
  expect("states on disk are written after their update: first_moment.w is not");
}

// Updates in the backward, in a program that has no action for them.
TEST_F(ScheduleFault, ABackwardThatUpdatesTooEarly) {
  program_.variants.erase(Action::kUpdate);
  std::vector<Variant>& backward = program_.variants[Action::kBackward];
  for (Variant& variant : backward) variant.swap_points.clear();
  backward[2].updates = true;
  schedule_.pop_back();
  EXPECT_NO_THROW(verify_schedule(program_, schedule_));
  entry(3).variant = 2;
  expect("nothing follows the update: forward 2");
  entry(3).variant = entry(5).variant = 1;
  expect("a step ends with its update: there is none");
}

// Two leaves of two micro-batches: one sum, which the update adds to the gradient in place.
class LeafFault : public ScheduleFault {
 protected:
  LeafFault() {
    const TensorType type = tensor_type(DType::kFloat32, {4});
    const Operand gradient{.arena = Arena::kGradient, .state = 0, .type = type},
        sum{.arena = Arena::kPersistent, .state = 1, .type = type};
    program_.states.push_back({.name = intern("leaf_sums.w.0"),
                               .part = {.role = spec::StateRole::kLeafSum},
                               .type = type});
    program_.leaves = 2;
    program_.calls.push_back(
        {.inputs = {gradient}, .outputs = {sum}, .adds = {false}, .label = "level 0"});
    program_.calls.at(kUpdateCall).inputs.push_back(sum);
    program_.variants[Action::kSumLeaf] = {{.places = spec::kEveryPlace, .calls = {kSumCall}}};
    schedule_ = spec::step_schedule(variant_places(program_), 4, 2);
  }

  static constexpr std::int32_t kSumCall = kUpdateCall + 1;
  static constexpr std::size_t kSum = 4;  // the entry after forward and backward 0 and 1
};

TEST_F(LeafFault, IsNoneInStepsOfEqualLeaves) {
  EXPECT_EQ(schedule_of(program_, 4), schedule_);
  EXPECT_EQ(entry(kSum), (StepEntry{Action::kSumLeaf, 1, 0}));
  EXPECT_THAT([&] { (void)schedule_of(program_, 3); },
              ThrowsMessage<InvalidArgument>(HasSubstr("expected a multiple of 2 micro-batches")));
}

TEST_F(LeafFault, ALeafThatNobodySums) {
  schedule_.erase(schedule_.begin() + kSum);
  expect("gradients assigned once: gradients.w: assign in backward 2:3 overwrites what was added");
}

TEST_F(LeafFault, ALeafThatIsSummedTooEarly) {
  std::rotate(schedule_.begin() + 2, schedule_.begin() + kSum, schedule_.begin() + kSum + 1);
  expect("a leaf is summed after its last micro-batch: sum_leaf 1 comes after 1 backwards");
}

TEST_F(LeafFault, AGradientThatIsLeftOutOfASum) {
  program_.calls[kSumCall].inputs.clear();
  expect("every gradient of a leaf is summed: gradients.w in sum_leaf 1");
}

TEST_F(LeafFault, ASumThatTheUpdateLeavesOut) {
  program_.calls[kUpdateCall].inputs.pop_back();
  expect("every leaf is part of the step: leaf_sums.w.0 holds some that are not");
}

TEST_F(LeafFault, ASumThatIsTakenTwice) {
  const Operand sum = program_.calls[kUpdateCall].inputs.back();
  program_.calls[kUpdateCall].inputs.push_back(sum);
  expect("sums of leaves taken once, after they are written: leaf_sums.w.0 in update");
}

}  // namespace
}  // namespace anabatic::runtime
