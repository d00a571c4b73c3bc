// SPDX-License-Identifier: Apache-2.0
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstring>

#include "anabatic/error.h"
#include "device/memory.h"
#include "device/thread_team.h"
#include "runtime/executor.h"

namespace anabatic::runtime {
namespace {

using ::testing::HasSubstr;
using ::testing::ThrowsMessage;

const DType kF32 = DType::kFloat32;

TEST(Memory, IsZeroedAndAlignedToHugePagesWhenLarge) {
  for (std::int64_t bytes : {1, 4096, 5 << 20}) {
    const device::Memory memory(bytes);
    EXPECT_EQ(reinterpret_cast<std::uintptr_t>(memory.data()) % (bytes >= 2 << 20 ? 2 << 20 : 64),
              0u);
    for (std::int64_t i = 0; i < bytes; ++i) ASSERT_EQ(memory.data()[i], std::byte{0});
  }
  EXPECT_EQ(device::Memory(0).data(), nullptr);
}

TEST(Memory, RefusesMoreThanTheSystemHas) {
  EXPECT_THROW(device::Memory(std::int64_t{1} << 60), ResourceError);
}

TEST(StateStore, KeepsAddressesAndTypes) {
  StateStore store;
  const TensorView a = store.add(intern("b"), tensor_type(kF32, {3}));
  a.as<float>()[1] = 5;
  for (int i = 0; i < 100; ++i)
    store.add(intern("small." + std::to_string(i)), tensor_type(kF32, {100 * i}));
  const TensorView again = store.add(intern("b"), tensor_type(kF32, {3}));
  EXPECT_EQ(again.data, a.data);
  EXPECT_EQ(again.as<float>()[1], 5);
  EXPECT_EQ(store.names().front(), intern("b"));
  EXPECT_EQ(store.names().size(), 101u);
}

TEST(StateStore, TakesWhatWasSaidOfItsSizes) {
  StateStore store;
  std::vector<std::int64_t> sizes;
  EXPECT_EQ(allocated_bytes(sizes), store.allocated_bytes());
  for (const std::int64_t count : {3, 100'000, 1, 131'072, 90'000, 131'071, 700'001, 200'000, 5}) {
    const TensorType type = tensor_type(kF32, {count});
    store.add(intern("s" + std::to_string(sizes.size())), type);
    sizes.push_back(type.num_bytes());
    EXPECT_EQ(allocated_bytes(sizes), store.allocated_bytes()) << count;
    EXPECT_GE(store.allocated_bytes(), store.num_bytes());
  }
}

TEST(StateStore, GivesTheBytesOfARemovedStateToTheNext) {
  StateStore store;
  const TensorType small = tensor_type(kF32, {8}), other = tensor_type(kF32, {16});
  const Name kept = intern("kept"), cache = intern("cache");
  store.add(kept, small);
  std::byte* data = store.add(cache, small).data;
  std::memset(data, 0xff, static_cast<std::size_t>(small.num_bytes()));
  store.remove(cache);
  EXPECT_FALSE(store.has(cache));
  EXPECT_EQ(store.num_bytes(), small.num_bytes());
  const std::int64_t allocated = store.allocated_bytes();
  const TensorView again = store.add(cache, small);
  EXPECT_EQ(again.data, data);
  EXPECT_EQ(*again.as<const float>(), 0.0f);  // a state begins with zeroes
  EXPECT_EQ(store.allocated_bytes(), allocated);
  store.remove(cache);
  EXPECT_EQ(*store.add(cache, other).type, other);  // of another type now
  store.add(intern("large"), tensor_type(kF32, {1 << 18}));
  store.remove(intern("large"));
  EXPECT_EQ(store.allocated_bytes(), allocated);
}

TEST(StateStore, FindsThePartsOfAParameterByRole) {
  StateStore store;
  const Name w = intern("w");
  store.add(w, tensor_type(kF32, {6, 2}));
  const auto add = [&](const char* name, StateRole role, spec::Rows rows) {
    store.add(intern(name), tensor_type(kF32, {rows.is_whole() ? 6 : rows.count, 2}), Tier::kMemory,
              {.role = role, .owner = w, .rows = rows});
  };
  add("c", StateRole::kFirstMoment, {5, 1, 6});
  add("a", StateRole::kFirstMoment, {0, 2, 6});
  add("b", StateRole::kFirstMoment, {2, 3, 6});
  add("v", StateRole::kSecondMoment, {});
  EXPECT_THAT(store.parts(StateRole::kFirstMoment, w),
              testing::ElementsAre(intern("a"), intern("b"), intern("c")));
  EXPECT_THAT(store.parts(StateRole::kSecondMoment, w), testing::ElementsAre(intern("v")));
  EXPECT_THAT(store.parts(StateRole::kLower, w), testing::IsEmpty());
  EXPECT_EQ(store.part(intern("b")).rows, (spec::Rows{2, 3, 6}));
  EXPECT_THAT([&] { add("v", StateRole::kFirstMoment, {}); },
              ThrowsMessage<InvalidArgument>(
                  HasSubstr("expected state v to be the second_moment of 'w', got first_moment")));
  store.remove(intern("b"));
  EXPECT_THAT(store.parts(StateRole::kFirstMoment, w),
              testing::ElementsAre(intern("a"), intern("c")));
}

TEST(StateStore, NamesWhatDoesNotFit) {
  StateStore store;
  store.add(intern("w"), tensor_type(kF32, {3}));
  EXPECT_THAT([&] { store.add(intern("w"), tensor_type(kF32, {4})); },
              ThrowsMessage<InvalidArgument>(HasSubstr("w of type f32[3], got f32[4]")));
  EXPECT_THAT([&] { store.find(intern("v")); }, ThrowsMessage<InvalidArgument>(HasSubstr("got v")));
}

// out = in + 1, or out += in + 1.
void run_increment(const kernels::Arguments& arguments) {
  const float value = *arguments.inputs[0].as<float>() + 1;
  float* output = arguments.outputs[0].as<float>();
  *output = arguments.accumulate[0] ? *output + value : value;
}

const kernels::Kernel kIncrement{
    "test:increment", "increment", [](const spec::Problem&) { return kernels::yes(); },
    nullptr,          nullptr,     run_increment};

Program increment_program(WriteMode mode) {
  Program program;
  const TensorType scalar = tensor_type(kF32, {});
  program.input_bytes = 64;
  program.gradient_bytes = 64;
  program.inputs.push_back({"x", {.arena = Arena::kInput, .type = scalar}});
  program.outputs.push_back({"y", {.arena = Arena::kGradient, .type = scalar}});
  program.calls[Action::kForward].push_back({.kernel = &kIncrement,
                                             .inputs = {program.inputs[0].operand},
                                             .outputs = {program.outputs[0].operand},
                                             .modes = {mode},
                                             .label = "increment"});
  return program;
}

TEST(Executor, AssignsOnlyInTheFirstMicroBatch) {
  const Program program = increment_program(WriteMode::kFirstAssigns);
  StateStore store;
  device::ThreadTeam team(1);
  for (bool poison : {false, true}) {
    Executor executor(program, store, team, {.poison = poison});
    const float one = 1;
    std::memcpy(executor.input("x").data(), &one, sizeof one);
    for (int step = 0; step < 2; ++step) {
      executor.run(Action::kForward, true);
      executor.run(Action::kForward, false);
      EXPECT_EQ(*executor.output("y").as<float>(), 4);
    }
  }
}

// Where others follow it.
TEST(Executor, RunsTheFirstMicroBatchsOwnCalls) {
  Program program = increment_program(WriteMode::kAssign);
  program.frame_bytes = 64;
  Call own = program.calls[Action::kForward][0];
  own.outputs[0].arena = Arena::kFrame;
  program.first = {.calls = {{Action::kForward, {own, own}}}, .outputs = {{"y", own.outputs[0]}}};
  StateStore store;
  device::ThreadTeam team(1);
  Executor executor(program, store, team);
  const float one = 1;
  std::memcpy(executor.input("x").data(), &one, sizeof one);
  int num_calls = 0;
  executor.observe(
      {[](void* context, const CallEvent&) { ++*static_cast<int*>(context); }, &num_calls});
  executor.run(Action::kForward, true, false);
  EXPECT_EQ(num_calls, 2);
  const std::byte* const in_first = executor.output("y").data;
  EXPECT_EQ(*executor.output("y").as<float>(), 2);
  executor.run(Action::kForward, false, true);
  EXPECT_EQ(num_calls, 3);
  EXPECT_NE(executor.output("y").data, in_first);
  executor.run(Action::kForward, true, true);  // alone in its step
  EXPECT_EQ(num_calls, 4);
  EXPECT_NE(executor.output("y").data, in_first);
}

TEST(Executor, TellsItsObserverOfEveryCall) {
  const Program program = increment_program(WriteMode::kAssign);
  StateStore store;
  device::ThreadTeam team(1);
  Executor executor(program, store, team);
  std::vector<std::string> labels;
  executor.observe({[](void* context, const CallEvent& event) {
                      static_cast<std::vector<std::string>*>(context)->push_back(event.call.label);
                    },
                    &labels});
  executor.run(Action::kForward);
  executor.observe({});
  executor.run(Action::kForward);
  EXPECT_EQ(labels, std::vector<std::string>{"increment"});
}

TEST(Executor, NamesWhatItDoesNotKnow) {
  const Program program = increment_program(WriteMode::kAssign);
  StateStore store;
  device::ThreadTeam team(1);
  Executor executor(program, store, team);
  EXPECT_THAT([&] { executor.input("z"); },
              ThrowsMessage<InvalidArgument>(HasSubstr("input, got 'z'")));
  EXPECT_THAT([&] { executor.output("z"); },
              ThrowsMessage<InvalidArgument>(HasSubstr("output, got 'z'")));
  EXPECT_THAT([&] { executor.run(Action::kUpdate); },
              ThrowsMessage<InvalidArgument>(HasSubstr("got update")));
}

TEST(Executor, RefusesOperandsOutsideTheirArena) {
  Program program = increment_program(WriteMode::kAssign);
  program.calls[Action::kForward][0].outputs[0].offset = 64;
  StateStore store;
  device::ThreadTeam team(1);
  EXPECT_THROW(Executor(program, store, team), InternalError);
}

}  // namespace
}  // namespace anabatic::runtime
