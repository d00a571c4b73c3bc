// SPDX-License-Identifier: Apache-2.0
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstring>

#include "anabatic/error.h"
#include "device/memory.h"
#include "device/thread_team.h"
#include "runtime/executor.h"
#include "runtime/shared_frame.h"

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

// A forward that leaves x + 1 in y.
Program increment_program() {
  Program program;
  const TensorType scalar = tensor_type(kF32, {});
  program.input_bytes = 64;
  program.gradient_bytes = 64;
  program.inputs.push_back({"x", {.arena = Arena::kInput, .type = scalar}});
  program.layouts[0].outputs.push_back({"y", {.arena = Arena::kGradient, .type = scalar}});
  program.calls.push_back({.kernel = &kIncrement,
                           .inputs = {program.inputs[0].operand},
                           .outputs = {program.layouts[0].outputs[0].operand},
                           .adds = {false},
                           .label = "increment"});
  program.variants[Action::kForward] = {{.places = spec::kEveryPlace, .calls = {0}}};
  return program;
}

constexpr StepEntry kForward{.action = Action::kForward};

void set_to_one(Executor& executor) {
  const float one = 1;
  std::memcpy(executor.input("x").data(), &one, sizeof one);
}

TEST(Executor, AddsInTheVariantsThatDo) {
  Program program = increment_program();
  program.calls.push_back(program.calls[0]);
  program.calls[1].adds = {true};
  program.variants[Action::kForward] = {
      {.places = spec::kLeafBegins, .calls = {0}},
      {.places = spec::kEveryPlace - spec::kLeafBegins, .calls = {1}}};
  StateStore store;
  device::ThreadTeam team(1);
  for (bool poison : {false, true}) {
    Executor executor(program, store, team, {.poison = poison});
    set_to_one(executor);
    for (int step = 0; step < 2; ++step) {
      for (const StepEntry& entry : spec::step_schedule(variant_places(program), 3))
        executor.run(entry);
      EXPECT_EQ(*executor.output("y").as<float>(), 6);
    }
  }
}

// A call that two variants share, and outputs where each has them.
TEST(Executor, RunsTheCallsOfAVariantInItsLayout) {
  Program program = increment_program();
  program.frame_bytes = 64;
  program.calls.push_back(program.calls[0]);
  program.calls[1].outputs[0].arena = Arena::kFrame;
  program.layouts.push_back({.outputs = {{"y", program.calls[1].outputs[0]}}});
  program.variants[Action::kForward].push_back({.layout = 1, .calls = {0, 1}});
  StateStore store;
  device::ThreadTeam team(1);
  Executor executor(program, store, team);
  set_to_one(executor);
  int num_calls = 0;
  executor.observe(
      {[](void* context, const CallEvent&) { ++*static_cast<int*>(context); }, &num_calls});
  executor.run({.action = Action::kForward, .variant = 1});
  EXPECT_EQ(num_calls, 2);
  const std::byte* const in_first = executor.output("y").data;
  EXPECT_EQ(*executor.output("y").as<float>(), 2);
  executor.run({.action = Action::kForward, .micro_batch = 1});
  EXPECT_EQ(num_calls, 3);
  EXPECT_NE(executor.output("y").data, in_first);
}

TEST(Executor, TellsItsObserverOfEveryCall) {
  const Program program = increment_program();
  StateStore store;
  device::ThreadTeam team(1);
  Executor executor(program, store, team);
  std::vector<std::string> labels;
  executor.observe({[](void* context, const CallEvent& event) {
                      static_cast<std::vector<std::string>*>(context)->push_back(event.call.label);
                    },
                    &labels});
  executor.run(kForward);
  executor.observe({});
  executor.run(kForward);
  EXPECT_EQ(labels, std::vector<std::string>{"increment"});
}

TEST(Executor, NamesWhatItDoesNotKnow) {
  const Program program = increment_program();
  StateStore store;
  device::ThreadTeam team(1);
  Executor executor(program, store, team);
  EXPECT_THAT([&] { executor.input("z"); },
              ThrowsMessage<InvalidArgument>(HasSubstr("input, got 'z'")));
  EXPECT_THAT([&] { executor.output("z"); },
              ThrowsMessage<InvalidArgument>(HasSubstr("output, got 'z'")));
  EXPECT_THAT([&] { executor.run({.action = Action::kUpdate}); },
              ThrowsMessage<InvalidArgument>(HasSubstr("got update")));
  EXPECT_THAT([&] { executor.run({.action = Action::kForward, .variant = 1}); },
              ThrowsMessage<InvalidArgument>(HasSubstr("expected one of 1 variants, got 1")));
}

TEST(Program, PrintsEachCallOnceWithItsPlaces) {
  Program program = increment_program();
  program.calls.push_back(program.calls[0]);
  program.calls[1].adds = {true};
  program.variants[Action::kForward] = {
      {.places = spec::kLeafBegins, .calls = {0}},
      {.places = spec::kEveryPlace - spec::kLeafBegins, .calls = {1}}};
  EXPECT_THAT(print(program),
              HasSubstr("  forward {\n"
                        "    increment | test:increment (input+0 f32[]) -> = gradient+0 f32[] in "
                        "{only, first}\n"
                        "    increment | test:increment (input+0 f32[]) -> += gradient+0 f32[] in "
                        "{middle, last}\n"
                        "  }\n"));
  program.variants[Action::kForward] = {{.places = spec::kEveryPlace, .calls = {0}}};
  EXPECT_THAT(print(program), HasSubstr("-> = gradient+0 f32[]\n  }\n"));
}

// y = (x + 1) + 1 by way of the frame, where x and y are the caller's.
Program external_program() {
  Program program;
  const TensorType scalar = tensor_type(kF32, {});
  const Operand x{.arena = Arena::kExternal, .type = scalar},
      y{.arena = Arena::kExternal, .offset = 128, .type = scalar},
      unread{.arena = Arena::kExternal, .offset = 64, .type = scalar},
      between{.arena = Arena::kFrame, .type = scalar};
  program.frame_bytes = 64;
  program.externals = {{"x", x}, {"unread", unread}, {"y", y}};
  program.num_external_inputs = 2;
  program.inputs = {{"x", x}, {"unread", unread}};
  program.layouts[0].outputs = {{"y", y}};
  for (const auto& [from, to] : {std::pair(x, between), std::pair(between, y)})
    program.calls.push_back({.kernel = &kIncrement,
                             .inputs = {from},
                             .outputs = {to},
                             .adds = {false},
                             .label = "increment"});
  program.variants[Action::kForward] = {{.places = spec::kEveryPlace, .calls = {0, 1}}};
  return program;
}

struct alignas(64) Scalar {
  float value = 0;
  std::byte* address() { return reinterpret_cast<std::byte*>(&value); }
};

TEST(Executor, WorksOnMemoryOfTheCaller) {
  const Program program = external_program();
  StateStore store;
  device::ThreadTeam team(1);
  for (bool poison : {false, true}) {
    Executor executor(program, store, team, {.poison = poison});
    Scalar in[2], out[2];
    for (int i : {0, 1, 0}) {
      in[i].value = static_cast<float>(10 * i);
      std::byte* const addresses[] = {in[i].address(), nullptr, out[i].address()};
      executor.run(kForward, addresses);
      EXPECT_EQ(out[i].value, static_cast<float>(10 * i + 2));
    }
    EXPECT_THAT([&] { executor.input("x"); },
                ThrowsMessage<InvalidArgument>(HasSubstr("input 'x' is in memory of the caller")));
    EXPECT_THAT([&] { executor.output("y"); },
                ThrowsMessage<InvalidArgument>(HasSubstr("output 'y' is in memory of the caller")));
  }
}

TEST(Executor, RefusesAddressesThatDoNotFit) {
  const Program program = external_program();
  StateStore store;
  device::ThreadTeam team(1);
  Executor executor(program, store, team);
  Scalar x, y;
  const auto run = [&](std::vector<std::byte*> addresses) {
    return [&executor, addresses] { executor.run(kForward, addresses); };
  };
  EXPECT_THAT(run({x.address(), nullptr}),
              ThrowsMessage<InvalidArgument>(HasSubstr("expected addresses of 3 external")));
  EXPECT_THAT(run({nullptr, nullptr, y.address()}),
              ThrowsMessage<InvalidArgument>(HasSubstr("expected input 'x' f32[] at a multiple")));
  EXPECT_THAT(run({x.address(), nullptr, y.address() + 4}),
              ThrowsMessage<InvalidArgument>(HasSubstr("expected output 'y' f32[] at a multiple")));
  EXPECT_THAT(run({x.address(), nullptr, x.address()}),
              ThrowsMessage<InvalidArgument>(HasSubstr("output 'y' in bytes of its own")));
  EXPECT_EQ(y.value, 0);
}

// The second executor needs more, so the frame moves between two runs of the first one.
TEST(Executor, SharesAFrameThatGrows) {
  const Program small = external_program();
  Program large = external_program();
  large.frame_bytes = std::int64_t{8} << 20;
  large.calls[0].outputs[0].offset = large.calls[1].inputs[0].offset = large.frame_bytes - 64;
  StateStore store;
  device::ThreadTeam team(1);
  SharedFrame frame;
  Executor first(small, store, team, {.frame = &frame});
  EXPECT_EQ(first.arena_bytes(), 0);
  Scalar x, y;
  std::byte* const addresses[] = {x.address(), nullptr, y.address()};
  first.run(kForward, addresses);
  Executor second(large, store, team, {.frame = &frame});
  EXPECT_EQ(frame.memory().bytes(), large.frame_bytes);
  x.value = 5;
  second.run(kForward, addresses);
  EXPECT_EQ(y.value, 7);
  x.value = 6;
  first.run(kForward, addresses);
  EXPECT_EQ(y.value, 8);
}

TEST(Executor, RefusesOperandsOutsideTheirArena) {
  Program program = increment_program();
  program.calls[0].outputs[0].offset = 64;
  StateStore store;
  device::ThreadTeam team(1);
  EXPECT_THROW(Executor(program, store, team), InternalError);
}

}  // namespace
}  // namespace anabatic::runtime
