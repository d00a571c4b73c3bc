// SPDX-License-Identifier: Apache-2.0
// A step allocates nothing: every path to the heap is counted. Its threads meet no page fault.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/resource.h>

#include <algorithm>
#include <cstdlib>
#include <filesystem>
#include <functional>
#include <vector>

#include "analysis/slices.h"
#include "device/thread_team.h"
#include "device/topology.h"
#include "lower/lower.h"
#include "ops/table.h"
#include "passes/decided/slice_calls.h"
#include "passes/pass_runner.h"
#include "plan/training_fixture.h"
#include "runtime/swap/swap_space.h"
#include "runtime/verify_schedule.h"
#include "support/counted_allocations.h"
#include "support/sanitized.h"

namespace anabatic::testing {
namespace {

TEST(Allocations, AreCounted) {
  const long before = num_allocations;
  void* volatile block = std::malloc(100);
  int* volatile number = new int(1);
  EXPECT_GE(num_allocations - before, 2);
  std::free(block);
  delete number;
}

// Every call that may be cut, into as many slices as it may.
void cut(lower::Compiled& compiled) {
  spec::Decisions decisions;
  for (const analysis::SliceableKind& kind : analysis::sliceable_kinds(compiled.graph))
    decisions.slices[kind.key] = kind.most;
  EXPECT_GE(decisions.slices.size(), 3u);
  const passes::PassContext context{.options = {.decisions = &decisions}, .find_op = ops::find_op};
  passes::run_passes(compiled.graph, {&passes::kSliceCalls, 1}, context,
                     {.facts = {"differentiated"}});
  const spec::DeviceSpec device = device::describe_cpu(2);
  compiled.plan = plan::make_plan(compiled.graph, device);
  compiled.program = lower::lower(compiled.graph, compiled.plan, device);
}

// What `count` says more after each step of two micro-batches than before it, from the third on.
std::vector<long> counts_of_steps(lower::Precision precision, const std::string& only_kernels,
                                  const std::function<long(device::ThreadTeam&)>& count,
                                  bool on_disk = false, bool is_cut = false) {
  constexpr int kSteps = 6, kFirst = 2;
  StepsOptions options;
  options.compile.precision = precision;
  options.compile.only_kernels = only_kernels;
  options.compile.disk = {.optimizer_state = on_disk, .min_bytes = 1};
  options.compile.pack_transposed = !is_cut;
  lower::Compiled compiled =
      lower::compile(tied_moe_graph(2), options.compile, device::describe_cpu(2));
  if (is_cut) cut(compiled);
  runtime::StateStore store;
  if (on_disk)
    store.set_swap(std::make_unique<runtime::swap::SwapSpace>(
        runtime::swap::SwapOptions{.directory = std::filesystem::temp_directory_path()}));
  device::ThreadTeam team(2);
  runtime::Executor executor(compiled.program, store, team);
  initialise(compiled, store, options.seed);
  const std::vector<spec::StepEntry> schedule = runtime::schedule_of(compiled.program, 2);
  std::vector<long> counts;
  for (int step = 0; step < kSteps; ++step) {
    long sum = 0;
    for (const spec::StepEntry& entry : schedule) {
      if (entry.action == spec::Action::kForward)
        fill_inputs(compiled, executor, options, step, entry.micro_batch);
      const long before = count(team);
      executor.run(entry);
      sum += count(team) - before;
    }
    if (step >= kFirst) counts.push_back(sum);
  }
  return counts;
}

// Page faults of all threads of the team so far.
long page_faults(device::ThreadTeam& team) {
  std::atomic<long> sum{0};
  team.run([&](int) {
    rusage usage{};
    getrusage(RUSAGE_THREAD, &usage);
    sum += usage.ru_minflt + usage.ru_majflt;
  });
  return sum;
}

TEST(Allocations, DoNotHappenInAStep) {
  using enum lower::Precision;
  for (auto precision : {kFp32, kBf16, kFp16, kMixed})
    for (const char* kernels : {"", "ref"})
      EXPECT_THAT(counts_of_steps(precision, kernels,
                                  [](device::ThreadTeam&) { return num_allocations.load(); }),
                  ::testing::Each(0))
          << "precision " << static_cast<int>(precision) << ' ' << kernels;
}

TEST(Allocations, DoNotHappenInAStepOfCallsInSlices) {
  using enum lower::Precision;
  for (auto precision : {kFp32, kBf16, kFp16, kMixed})
    EXPECT_THAT(
        counts_of_steps(
            precision, "", [](device::ThreadTeam&) { return num_allocations.load(); }, false, true),
        ::testing::Each(0));
}

// Nor in the engine's thread.
TEST(Allocations, DoNotHappenInAStepWithStatesOnDisk) {
  EXPECT_THAT(counts_of_steps(
                  lower::Precision::kBf16, "ref",
                  [](device::ThreadTeam&) { return num_allocations.load(); }, true),
              ::testing::Each(0));
}

// The system may take a page away and give it back; what faults in every step is the step's own.
TEST(PageFaults, DoNotBelongToAStep) {
  if (kIsSanitized) GTEST_SKIP() << "a sanitizer maps its shadow as it goes";
  for (auto precision : {lower::Precision::kFp32, lower::Precision::kBf16}) {
    const std::vector<long> faults = counts_of_steps(precision, "", page_faults);
    EXPECT_EQ(*std::min_element(faults.begin(), faults.end()), 0);
  }
}

}  // namespace
}  // namespace anabatic::testing
