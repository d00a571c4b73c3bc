// SPDX-License-Identifier: Apache-2.0
// Activations that wait on disk for the backward: when they move, the verifier against planted
// faults, and steps that give the bits of those that keep everything.
#include "plan/offload.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <functional>

#include "anabatic/error.h"
#include "analysis/rebuild.h"
#include "base/philox.h"
#include "plan/memory_menu.h"
#include "plan/swap.h"
#include "plan/training_fixture.h"

namespace anabatic::testing {
namespace {

using ::testing::HasSubstr;
using ::testing::ThrowsMessage;

constexpr plan::DiskSpeed kFast{1e15, 1e15}, kSlow{1e3, 1e3};

lower::CompileOptions options_with(std::vector<std::string> cold, plan::DiskSpeed disk = kFast) {
  lower::CompileOptions options;
  options.only_kernels = "ref";
  options.memory.offload = {.is_allowed = true, .min_bytes = 1, .cold = std::move(cold)};
  options.efficiency.disk = disk;
  return options;
}

lower::Compiled compiled(const lower::CompileOptions& options, int num_layers = 3) {
  return lower::compile(tied_moe_graph(num_layers), options, {});
}

std::vector<std::string> saved_keys(int num_layers = 3) {
  const lower::Compiled whole = compiled({.only_kernels = "ref"}, num_layers);
  const analysis::Rebuilder rebuilder(whole.graph);
  std::vector<std::string> keys;
  for (const analysis::SavedValue& saved : rebuilder.saved()) keys.push_back(saved.key);
  return keys;
}

// Ten calls of a second each, six of the forward.
plan::Calls ten_calls() {
  return {.seconds = std::vector<double>(10, 1.0), .forward_length = 6, .before_update = 10};
}

TEST(Schedule, GivesBytesBackWhenTheyAreWrittenAndBringsThemInTime) {
  // At 4 bytes a second with a third to spare: three seconds each way for 9 bytes.
  std::vector<plan::Offload> offloads{{.bytes = 9, .write_at = 1, .needed_at = 9}};
  EXPECT_EQ(plan::schedule(offloads, ten_calls(), {4, 4}), 0);
  EXPECT_EQ(offloads[0].written_by, 4);
  EXPECT_EQ(offloads[0].read_at, 6);
}

TEST(Schedule, SharesTheDiskAmongAllThatMoves) {
  std::vector<plan::Offload> offloads{{.bytes = 6, .write_at = 2, .needed_at = 8},
                                      {.bytes = 6, .write_at = 1, .needed_at = 9}};
  EXPECT_EQ(plan::schedule(offloads, ten_calls(), {8, 8}), 0);
  EXPECT_EQ(offloads[1].written_by, 2);
  EXPECT_EQ(offloads[0].written_by, 3);
  EXPECT_EQ(offloads[1].read_at, 8);
  EXPECT_EQ(offloads[0].read_at, 7);
}

TEST(Schedule, PricesWhatTheDiskCannotBringInTime) {
  std::vector<plan::Offload> offloads{{.bytes = 10, .write_at = 1, .needed_at = 6}};
  // Ten seconds there and back from second 1 on, needed at second 6.
  EXPECT_EQ(plan::schedule(offloads, ten_calls(), {2, 2}), 5.0);
}

TEST(Offload, LeavesTheFrameBetweenForwardAndBackward) {
  const std::vector<std::string> keys = saved_keys();
  const lower::Compiled whole = compiled({.only_kernels = "ref"}),
                        moved = compiled(options_with(keys));
  EXPECT_GT(moved.plan.offloads.size(), keys.size() / 2);
  EXPECT_LT(moved.plan.frame_live_bytes, whole.plan.frame_live_bytes + 64 * 4096);
  EXPECT_GT(moved.plan.disk_bytes, 0);
  EXPECT_EQ(moved.program.regions.size(), moved.plan.offloads.size());
  EXPECT_THAT(runtime::print(moved.program), HasSubstr("offloaded"));
  for (const runtime::Call& call : moved.program.calls)
    EXPECT_EQ(call.label.find("reload"), call.label.npos) << call.label;
}

// As in a saved plan that somebody edited.
TEST(Offload, IsTimedAnewWhereItsPositionsAreNone) {
  lower::CompileOptions options = options_with(saved_keys());
  const lower::Compiled good = compiled(options);
  for (const spec::OffloadSpan bad :
       {spec::OffloadSpan{1 << 30, 1 << 30}, spec::OffloadSpan{}, spec::OffloadSpan{1 << 30, 0}}) {
    options.memory.replay = good.memory.decisions;
    options.memory.replay->offloads.begin()->second = bad;
    const lower::Compiled again = compiled(options);
    EXPECT_EQ(plan::print(again.graph, again.plan), plan::print(good.graph, good.plan));
  }
}

TEST(Offload, IsRefusedWhereHintsDisagree) {
  lower::CompileOptions options = options_with({"experts"});
  options.disk = {.optimizer_state = true,
                  .min_bytes = 1,
                  .hot = {"experts.up.weight"},
                  .cold = {"experts"},
                  .only_cold = true};
  EXPECT_THAT([&] { compiled(options); },
              ThrowsMessage<InvalidArgument>(HasSubstr("expected hints that agree")));
}

TEST(Offload, IsWhatMemoryColdSays) {
  const lower::Compiled moved = compiled(options_with({"experts"}));
  ASSERT_FALSE(moved.memory.decisions.saved_as.empty());
  for (const auto& [key, form] : moved.memory.decisions.saved_as) {
    EXPECT_EQ(form, spec::SavedForm::kDisk);
    EXPECT_THAT(key, HasSubstr("experts"));
  }
  lower::CompileOptions resident = options_with({});
  resident.memory.offload = {};
  resident.disk.cold = {saved_keys().front()};
  EXPECT_THAT([&] { compiled(resident); },
              ThrowsMessage<InvalidArgument>(HasSubstr("memory.activations: disk")));
}

class PlantedOffload : public ::testing::Test {
 protected:
  PlantedOffload() : compiled_(compiled(options_with(saved_keys()))) {}

  void expect(const char* rule) {
    EXPECT_THAT([&] { plan::verify(compiled_.graph, compiled_.plan); },
                ThrowsMessage<InternalError>(HasSubstr(rule)));
  }
  plan::Plan& plan() { return compiled_.plan; }
  // Counts plans with one changed offload each that the verifier refuses. If no other value uses
  // the bytes meanwhile, a change does no harm.
  int num_found(const std::function<void(plan::Offload&)>& change) {
    const plan::Plan good = plan();
    int found = 0;
    for (std::size_t i = 0; i < good.offloads.size(); ++i) {
      plan() = good;
      change(plan().offloads[i]);
      try {
        plan::verify(compiled_.graph, plan());
      } catch (const InternalError&) {
        ++found;
      }
    }
    return found;
  }
  std::int32_t buffer_of(ir::ValueId value) { return plan().buffer_of_value[index(value)]; }

  lower::Compiled compiled_;
};

TEST_F(PlantedOffload, AWriteThatBeginsTooEarlyIsFound) {
  for (plan::Offload& offload : plan().offloads) offload.write_at = 0;
  expect("offloads written from computed values");
}

TEST_F(PlantedOffload, AWriteThatIsAwaitedTooLateIsFound) {
  EXPECT_GT(num_found([](plan::Offload& offload) { offload.written_by = offload.needed_at; }), 0);
}

TEST_F(PlantedOffload, AReadThatBeginsTooEarlyIsFound) {
  EXPECT_GT(num_found([](plan::Offload& offload) { offload.read_at = offload.write_at; }), 0);
}

TEST_F(PlantedOffload, AReadBehindItsUseIsFound) {
  plan().offloads.front().read_at = plan().offloads.front().needed_at + 1;
  expect("offloads written before they are read");
}

TEST_F(PlantedOffload, ABufferOffItsSectorsIsFound) {
  const ir::ValueId value = compiled_.graph.node(plan().offloads[0].reload).outputs[0];
  plan().buffers[static_cast<std::size_t>(buffer_of(value))].offset += 64;
  expect("whole sectors");
}

TEST_F(PlantedOffload, ACallLessThanPlannedIsFound) {
  plan().offloads.pop_back();
  expect("an offload for every reload without a call");
}

TEST(StepsWithOffloads, GiveTheBitsOfThoseThatKeepEverything) {
  const std::vector<std::string> keys = saved_keys();
  for (const auto precision : {lower::Precision::kFp32, lower::Precision::kBf16})
    for (std::uint64_t seed = 0; seed < 8; ++seed) {
      SCOPED_TRACE(seed);
      StepsOptions options;
      options.compile.precision = precision;
      options.end_micro_batch = 1 + static_cast<int>(seed % 3);
      options.compile.micro_batches = seed % 3 == 0 ? 1 : 0;
      const StepsResult want = run_steps(tied_moe_graph(3), options);
      std::vector<std::string> cold, again;
      for (std::size_t i = 0; i < keys.size(); ++i)
        switch (seed == 0 ? 0 : random_below(seed, 0, i, 3)) {
          case 0:
            cold.push_back(keys[i]);
            break;
          case 1:
            again.push_back(keys[i]);
            break;
          default:
            break;
        }
      options.compile.memory.offload = options_with(cold).memory.offload;
      options.compile.memory.recompute = again;
      options.compile.efficiency.disk = seed % 2 == 0 ? kFast : kSlow;
      // Moments on the same disk.
      if (seed % 4 == 3)
        options.compile.disk = {.optimizer_state = true, .min_bytes = 1, .slice_bytes = 512};
      for (const bool trivial : {false, true}) {
        options.compile.trivial_planners = trivial;
        options.executor.poison = true;
        options.num_threads = 1 + static_cast<int>(seed % 3);
        const StepsResult got = run_steps(tied_moe_graph(3), options);
        EXPECT_EQ(got.losses, want.losses);
        EXPECT_EQ(got.states, want.states);
      }
    }
}

TEST(StepsWithOffloads, ReplayWhatABudgetChose) {
  lower::CompileOptions options = options_with({});
  options.micro_batches = 1;
  const std::int64_t whole = compiled(options, 6).plan.peak_bytes();
  for (std::int64_t budget = whole;; budget = budget * 97 / 100) {
    options.memory.budget_bytes = budget;
    const auto chosen = lower::try_compile(tied_moe_graph(6), options, {});
    if (!chosen) break;
    EXPECT_LE(chosen->plan.peak_bytes(), budget);
    lower::CompileOptions replay = options;
    replay.memory.replay = chosen->memory.decisions;
    replay.efficiency.disk = kSlow;  // on another machine
    const lower::Compiled again = compiled(replay, 6);
    EXPECT_EQ(plan::print(again.graph, again.plan), plan::print(chosen->graph, chosen->plan));
  }
}

}  // namespace
}  // namespace anabatic::testing
