// SPDX-License-Identifier: Apache-2.0
// States on disk: windows that the planner chooses, the verifier against planted faults, and steps
// that give the bits of resident states.
#include "plan/swap.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <set>

#include "anabatic/error.h"
#include "analysis/rebuild.h"
#include "passes/slice_optimizer.h"
#include "plan/budget_error.h"
#include "plan/hints.h"
#include "plan/offload.h"
#include "plan/training_fixture.h"
#include "plan/transfers.h"

namespace anabatic::testing {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;
using ::testing::ThrowsMessage;

constexpr plan::DiskOptions kAll{.optimizer_state = true, .min_bytes = 1};

// With all that the model reads of parameters.
constexpr plan::DiskOptions kParametersToo{.optimizer_state = true,
                                           .masters = true,
                                           .parameters = true,
                                           .min_bytes = 1,
                                           .min_parameter_bytes = 1};

lower::CompileOptions on_disk() {
  lower::CompileOptions options;
  options.only_kernels = "ref";
  options.disk = kAll;
  return options;
}

std::int32_t length_of(const plan::Plan& plan) {
  std::size_t length = 0;
  for (const auto& [action, order] : plan.orders) length += order.size();
  return static_cast<std::int32_t>(length);
}

TEST(Windows, HoldTheMomentsAndNothingElse) {
  const lower::Compiled compiled = lower::compile(tied_moe_graph(2), on_disk(), {});
  std::set<std::string> on_disk_states, moments;
  for (const plan::SwapWindow& window : compiled.plan.windows) {
    const auto& buffer = compiled.plan.buffers[static_cast<std::size_t>(window.buffer)];
    on_disk_states.emplace(
        text(compiled.graph.states[static_cast<std::size_t>(buffer.state)].name));
  }
  for (const ir::State& state : compiled.graph.states)
    if (state.kind() == ir::StateKind::kOptimizer) moments.emplace(text(state.name));
  EXPECT_FALSE(moments.empty());
  EXPECT_EQ(on_disk_states, moments);
  EXPECT_THAT(runtime::print(compiled.program), HasSubstr("await read of first_moment."));
}

// The lower 16 bits of parameters go where the moments go, if they may.
TEST(Windows, HoldMastersWhereTheyMay) {
  lower::CompileOptions options = on_disk();
  options.precision = lower::Precision::kBf16;
  const auto num_low = [&] {
    const lower::Compiled compiled = lower::compile(tied_moe_graph(2), options, {});
    std::pair<std::size_t, std::size_t> count{0, 0};  // windows, states
    for (const ir::State& state : compiled.graph.states)
      count.second += text(state.name).starts_with("low.");
    for (const plan::SwapWindow& window : compiled.plan.windows) {
      const auto& buffer = compiled.plan.buffers[static_cast<std::size_t>(window.buffer)];
      count.first += text(compiled.graph.states[static_cast<std::size_t>(buffer.state)].name)
                         .starts_with("low.");
    }
    return count;
  };
  EXPECT_EQ(num_low().first, 0u);
  EXPECT_GT(num_low().second, 0u);
  options.disk.masters = true;
  EXPECT_GT(num_low().first, 0u);
  EXPECT_EQ(num_low().first, num_low().second);
  options.disk.slice_bytes = 768;
  const std::size_t whole = num_low().first;
  EXPECT_GT(num_low().first, 0u);
  EXPECT_EQ(num_low().first, num_low().second);
  EXPECT_GE(num_low().first, whole);
  options.disk.hot = {"experts"};
  EXPECT_LT(num_low().first, num_low().second);
}

lower::CompileOptions parameters_on_disk() {
  lower::CompileOptions options = on_disk();
  options.disk = kParametersToo;
  return options;
}

// No parameter has bytes in memory but in its window and in copies, which what reads it reads.
TEST(Copies, StandForParametersOnDisk) {
  for (const auto precision : {lower::Precision::kFp32, lower::Precision::kBf16}) {
    lower::CompileOptions options = parameters_on_disk();
    options.precision = precision;
    const lower::Compiled compiled = lower::compile(tied_moe_graph(2), options, {});
    std::set<ir::ValueId> parameters;
    for (const ir::State& state : compiled.graph.states) {
      if (state.kind() != ir::StateKind::kParameter) continue;
      parameters.insert(state.before);
      const auto& buffer = compiled.plan.buffers[static_cast<std::size_t>(
          compiled.plan.buffer_of_value[index(state.before)])];
      EXPECT_EQ(buffer.arena, spec::Arena::kFrame) << text(state.name);
    }
    int num_copies = 0;
    for (const ir::Node& node : compiled.graph.nodes)
      for (const ir::ValueId input : node.inputs) {
        if (!parameters.contains(input)) continue;
        EXPECT_TRUE(node.op->name == "reload" || node.op->name == "optimizer_step")
            << node.op->name;
        num_copies += node.op->name == "reload";
      }
    EXPECT_GT(num_copies, static_cast<int>(parameters.size()));  // the backward reads some, too
    EXPECT_EQ(std::count_if(compiled.plan.offloads.begin(), compiled.plan.offloads.end(),
                            [](const plan::Offload& offload) { return offload.is_of_state(); }),
              num_copies);
    for (const runtime::Call& call : compiled.program.calls) EXPECT_NE(call.kernel->op, "reload");
  }
}

TEST(Copies, AreOfWhatHintsLeave) {
  lower::CompileOptions options = parameters_on_disk();
  const auto copied = [&] {
    const lower::Compiled compiled = lower::compile(tied_moe_graph(2), options, {});
    std::set<std::string> names;
    for (const plan::Offload& offload : compiled.plan.offloads)
      names.emplace(text(compiled.graph.states[static_cast<std::size_t>(offload.state)].name));
    return names;
  };
  const auto all = copied();
  options.disk.hot = {"experts"};
  EXPECT_LT(copied().size(), all.size());
  for (const std::string& name : copied()) EXPECT_THAT(name, Not(HasSubstr("experts")));
  options.disk.hot.clear();
  options.disk.min_parameter_bytes = std::int64_t{1} << 20;
  EXPECT_TRUE(copied().empty());
}

// However slow the disk is, few copies are in memory before their readers.
TEST(Copies, DoNotFillMemoryAheadOfTheirReaders) {
  lower::CompileOptions options = parameters_on_disk();
  std::int64_t fast = 0;
  for (const double speed : {1e15, 1e2}) {
    options.efficiency.disk = {speed, speed};
    const lower::Compiled compiled = lower::compile(tied_moe_graph(8), options, {});
    std::int32_t most = 0;
    for (const plan::Offload& offload : compiled.plan.offloads) {
      std::int32_t ahead = 0;
      for (const plan::Offload& other : compiled.plan.offloads)
        ahead += other.read_at <= offload.read_at && offload.read_at < other.needed_at;
      most = std::max(most, ahead);
    }
    EXPECT_LE(most, 5);
    if (fast == 0) fast = compiled.plan.frame_bytes;
    EXPECT_LT(compiled.plan.frame_bytes, 2 * fast);
  }
}

TEST(Hints, NameStatesByTheParameterThatTheyServe) {
  constexpr const char* kName = "layers.0.experts.up.weight";
  using enum ir::StateRole;
  for (const ir::StateRole role : {kParameter, kFirstMoment, kSecondMoment, kLower}) {
    ir::State state;
    state.role = role;
    const bool has_owner = spec::has_owner(role);
    state.owner = has_owner ? intern(kName) : Name{};
    state.name = has_owner ? intern("any name") : intern(kName);
    EXPECT_EQ(text(plan::parameter_of(state)), kName) << to_string(role);
  }
  const plan::Experts all{0, 8};
  EXPECT_TRUE(plan::may_go_to_disk({.cold = {"experts"}, .only_cold = true}, kName, all));
  EXPECT_FALSE(plan::may_go_to_disk({.cold = {"embedding"}, .only_cold = true}, kName, all));
  EXPECT_FALSE(plan::may_go_to_disk({.hot = {"layers.0"}}, kName, all));
}

TEST(Hints, NameSingleExpertsOfAStack) {
  constexpr const char* kName = "layers.0.experts.up.weight";
  const auto is_cold = [&](std::vector<std::string> cold, plan::Experts experts) {
    return plan::may_go_to_disk({.cold = std::move(cold), .only_cold = true}, kName, experts);
  };
  const auto is_hot = [&](std::vector<std::string> hot, plan::Experts experts) {
    return !plan::may_go_to_disk({.hot = std::move(hot)}, kName, experts);
  };
  for (const char* hint : {"layers.0.experts.3", "experts.3", "experts.3.up", "experts.0-3.up",
                           "experts.3-5.up.weight", "experts.3-3"}) {
    SCOPED_TRACE(hint);
    EXPECT_TRUE(is_cold({hint}, {3, 4}));
    EXPECT_FALSE(is_cold({hint}, {3, 8}));  // others stay, and so the whole
    EXPECT_FALSE(is_cold({hint}, {6, 8}));
    EXPECT_FALSE(is_cold({hint}, {}));  // no stack
    EXPECT_TRUE(is_hot({hint}, {3, 4}));
    EXPECT_TRUE(is_hot({hint}, {0, 8}));  // one of them may not go
    EXPECT_FALSE(is_hot({hint}, {6, 8}));
  }
  for (const char* hint : {"layers.1.experts.3", "experts.3.down", "experts.5-3", "experts.3-",
                           "experts.-3", "experts.3x", "experts.99999999999", "expert.3", "3"}) {
    SCOPED_TRACE(hint);
    EXPECT_FALSE(is_cold({hint}, {3, 4}));
    EXPECT_FALSE(is_hot({hint}, {3, 4}));
  }
  EXPECT_TRUE(is_cold({"experts.0-3", "experts.4-7"}, {0, 8}));
  EXPECT_FALSE(is_cold({"experts.0-2", "experts.4-7"}, {0, 8}));
}

// Slices of a few rows: no window is larger, and so the frame grows by less.
TEST(Windows, HoldSlicesOfLargeStates) {
  const lower::Compiled whole = lower::compile(tied_moe_graph(2), on_disk(), {});
  lower::CompileOptions options = on_disk();
  options.disk.slice_bytes = 768;
  const lower::Compiled sliced = lower::compile(tied_moe_graph(2), options, {});
  std::int64_t largest = 0;
  for (const plan::SwapWindow& window : sliced.plan.windows)
    largest = std::max(largest, sliced.plan.buffers[static_cast<std::size_t>(window.buffer)].bytes);
  EXPECT_LE(largest, 768);
  EXPECT_GT(sliced.plan.windows.size(), whole.plan.windows.size());
  const std::vector<passes::SlicedState> states = passes::sliced_states(sliced.graph);
  ASSERT_FALSE(states.empty());
  for (const passes::SlicedState& state : states) {
    EXPECT_EQ(whole.graph.value(whole.graph.find_state(state.name)->before).type, state.type);
    std::int64_t bytes = 0;
    for (const passes::StateSlice& slice : state.slices)
      bytes += sliced.graph.value(sliced.graph.find_state(slice.name)->before).type.num_bytes();
    EXPECT_EQ(bytes, state.type.num_bytes());
  }
}

TEST(Windows, LeaveSmallStatesInMemory) {
  lower::CompileOptions options = on_disk();
  options.disk.min_bytes = 300;
  const lower::Compiled compiled = lower::compile(tied_moe_graph(2), options, {});
  ASSERT_FALSE(compiled.plan.windows.empty());
  for (const ir::State& state : compiled.graph.states) {
    if (state.kind() != ir::StateKind::kOptimizer) continue;
    const auto& buffer =
        compiled.plan
            .buffers[static_cast<std::size_t>(compiled.plan.buffer_of_value[index(state.before)])];
    EXPECT_EQ(buffer.arena == spec::Arena::kPersistent, buffer.bytes < 300) << text(state.name);
  }
}

// Every matrix of moments is as large as the frame's largest buffer, and they do not fit together:
// the memory for them is what activations leave, and two nodes' windows where that is less.
TEST(Windows, TakeBytesThatActivationsLeave) {
  lower::CompileOptions options = on_disk();
  options.disk = {};
  const plan::Plan resident = lower::compile(tied_moe_graph(6), options, {}).plan;
  options.disk = kAll;
  const plan::Plan plan = lower::compile(tied_moe_graph(6), options, {}).plan;
  std::int64_t all = 0, largest = 0;
  for (const plan::SwapWindow& window : plan.windows) {
    all += window.bytes;
    largest = std::max(largest, window.bytes);
  }
  EXPECT_EQ(plan.disk_bytes, all);
  EXPECT_LE(plan.frame_bytes, resident.frame_bytes + 4 * largest + plan::kSwapAlignmentBytes);
  EXPECT_LT(plan.frame_bytes, all / 2);
  EXPECT_LT(plan.persistent_bytes, resident.persistent_bytes);
}

TEST(Windows, AreReadAheadOfTheUpdateAndDrainBehindIt) {
  const lower::Compiled compiled = lower::compile(tied_moe_graph(6), on_disk(), {});
  const plan::Plan& plan = compiled.plan;
  const std::int32_t update =
      length_of(plan) - static_cast<std::int32_t>(plan.orders.at(spec::Action::kUpdate).size());
  int num_early = 0, num_late = 0;
  for (const plan::SwapWindow& window : plan.windows) {
    EXPECT_GE(window.use, update);
    num_early += window.read_at < update;
    num_late += window.written_by < window.end;  // in the next step, or not at all
  }
  EXPECT_GT(num_early, 1);
  EXPECT_GT(num_late, 1);
}

class PlantedTransfer : public ::testing::Test {
 protected:
  PlantedTransfer() : compiled_(lower::compile(tied_moe_graph(3), on_disk(), {})) {}

  void expect(const char* rule) {
    EXPECT_THAT([&] { plan::verify(compiled_.graph, compiled_.plan); },
                ThrowsMessage<InternalError>(HasSubstr(rule)));
  }
  plan::Plan& plan() { return compiled_.plan; }

  lower::Compiled compiled_;
};

TEST_F(PlantedTransfer, AWindowOntoALiveBufferIsFound) {
  const plan::Plan good = plan();
  int num_tried = 0;
  for (const plan::SwapWindow& window : good.windows)
    for (const plan::PlannedBuffer& other : good.buffers) {
      const auto& buffer = good.buffers[static_cast<std::size_t>(window.buffer)];
      const std::int64_t offset =
          other.offset / plan::kSwapAlignmentBytes * plan::kSwapAlignmentBytes;
      if (other.arena != spec::Arena::kFrame || other.bytes == 0 || &other == &buffer ||
          !other.lifetime.overlaps({window.use, window.end}) ||
          offset + window.bytes > good.frame_bytes)
        continue;
      plan() = good;
      plan().buffers[static_cast<std::size_t>(window.buffer)].offset = offset;
      EXPECT_THROW(plan::verify(compiled_.graph, plan()), InternalError);
      ++num_tried;
    }
  EXPECT_GT(num_tried, 10);
}

TEST_F(PlantedTransfer, AReadThatBeginsTooEarlyIsFound) {
  for (plan::SwapWindow& window : plan().windows) window.read_at = 0;
  expect("");
}

TEST_F(PlantedTransfer, AReadAheadOfItsTurnIsFound) {
  ASSERT_LT(plan().windows.front().read_at, plan().windows.back().read_at);
  std::swap(plan().windows.front(), plan().windows.back());
  expect("reads queued in the order");
}

// Some window lies where the next step's forward or backward writes.
TEST_F(PlantedTransfer, AWriteThatNothingAwaitsIsFound) {
  for (plan::SwapWindow& window : plan().windows) window.written_by = plan::SwapWindow::kNoPosition;
  expect("no transfer overlaps");
}

// A position late, of every window whose bytes no later window takes over (which waits, too).
TEST_F(PlantedTransfer, AWriteAwaitedTooLateIsFound) {
  const plan::Plan good = plan();
  const auto buffer = [&](const plan::SwapWindow& window) -> const plan::PlannedBuffer& {
    return good.buffers[static_cast<std::size_t>(window.buffer)];
  };
  int num_found = 0;
  for (std::size_t i = 0; i < good.windows.size(); ++i) {
    const plan::SwapWindow& window = good.windows[i];
    if (window.written_by < 0 || window.written_by >= window.end) continue;
    if (std::any_of(good.windows.begin() + static_cast<std::ptrdiff_t>(i) + 1, good.windows.end(),
                    [&](const plan::SwapWindow& later) {
                      return buffer(later).offset < buffer(window).offset + window.bytes &&
                             buffer(window).offset < buffer(later).offset + later.bytes;
                    }))
      continue;
    plan() = good;
    ++plan().windows[i].written_by;
    EXPECT_THROW(plan::verify(compiled_.graph, plan()), InternalError) << i;
    ++num_found;
  }
  EXPECT_GT(num_found, 0);
}

TEST_F(PlantedTransfer, AUseBeforeTheReadIsAwaitedIsFound) {
  plan::SwapWindow& window = plan().windows.back();
  ++window.use;
  ++window.end;
  expect("");
}

TEST_F(PlantedTransfer, AWindowOffItsSectorsIsFound) {
  plan().buffers[static_cast<std::size_t>(plan().windows[0].buffer)].offset += 64;
  expect("whole sectors");
}

class PlantedCopy : public ::testing::Test {
 protected:
  PlantedCopy() : compiled_(lower::compile(tied_moe_graph(3), parameters_on_disk(), {})) {}

  void expect(const char* rule) {
    EXPECT_THAT([&] { plan::verify(compiled_.graph, compiled_.plan); },
                ThrowsMessage<InternalError>(HasSubstr(rule)));
  }
  plan::Plan& plan() { return compiled_.plan; }
  plan::PlannedBuffer& bytes_of(const plan::Offload& offload) {
    const ir::ValueId copy = compiled_.graph.node(offload.reload).outputs[0];
    return plan().buffers[static_cast<std::size_t>(plan().buffer_of_value[index(copy)])];
  }

  lower::Compiled compiled_;
};

TEST_F(PlantedCopy, OntoALiveBufferIsFound) {
  const plan::Plan good = plan();
  int num_tried = 0;
  for (std::size_t i = 0; i < good.offloads.size(); ++i)
    for (const plan::PlannedBuffer& other : good.buffers) {
      plan() = good;
      plan::PlannedBuffer& buffer = bytes_of(good.offloads[i]);
      const std::int64_t offset =
          other.offset / plan::kSwapAlignmentBytes * plan::kSwapAlignmentBytes;
      if (other.arena != spec::Arena::kFrame || other.bytes == 0 || other.value == buffer.value ||
          other.lifetime.begin > good.offloads[i].needed_at ||
          other.lifetime.end <= good.offloads[i].needed_at + 1 ||
          offset + good.offloads[i].bytes > good.frame_bytes)
        continue;
      buffer.offset = offset;
      EXPECT_THROW(plan::verify(compiled_.graph, plan()), InternalError);
      ++num_tried;
    }
  EXPECT_GT(num_tried, 10);
}

TEST_F(PlantedCopy, OfAnotherParameterIsFound) {
  plan().offloads.front().state = plan().offloads.back().state;
  expect("copies of parameters that are only read");
}

TEST_F(PlantedCopy, OffItsSectorsIsFound) {
  bytes_of(plan().offloads.front()).offset += 64;
  expect("whole sectors");
}

TEST_F(PlantedCopy, NeededBeforeItIsReadIsFound) {
  plan().offloads.front().read_at = plan().offloads.front().needed_at + 1;
  expect("copies of parameters that are only read");
}

TEST_F(PlantedCopy, ThatIsMissingIsFound) {
  plan().offloads.pop_back();
  expect("");
}

TEST(StepsOnDisk, GiveTheBitsOfResidentStates) {
  for (const int layers : {1, 4})
    for (const bool trivial : {false, true})
      for (const bool poison : {false, true})
        for (const int micro_batches : {1, 3}) {
          SCOPED_TRACE(::testing::Message()
                       << layers << " layers, trivial " << trivial << ", poison " << poison << ", "
                       << micro_batches << " micro-batches");
          StepsOptions options;
          options.compile.only_kernels = "ref";
          options.end_step = 4;
          options.end_micro_batch = micro_batches;
          const StepsResult want = run_steps(tied_moe_graph(layers), options);
          options.compile.disk = kAll;
          if (layers > 1) options.compile.disk.slice_bytes = 512;
          options.compile.trivial_planners = trivial;
          options.executor.poison = poison;
          const StepsResult got = run_steps(tied_moe_graph(layers), options);
          EXPECT_EQ(got.losses, want.losses);
          EXPECT_EQ(got.gradients, want.gradients);
          EXPECT_EQ(got.states, want.states);
        }
}

TEST(StepsOnDisk, GiveTheBitsWithGradientsInTheFrameAndValuesMadeAgain) {
  StepsOptions options;
  options.compile.only_kernels = "ref";
  options.end_step = 3;
  options.end_micro_batch = 1;
  const StepsResult want = run_steps(tied_moe_graph(6), options);
  options.compile.micro_batches = 1;
  options.compile.disk = kAll;
  for (const bool poison : {false, true}) {
    options.executor.poison = poison;
    EXPECT_EQ(run_steps(tied_moe_graph(6), options).states, want.states);
  }
  const lower::Compiled whole = lower::compile(tied_moe_graph(6), options.compile, {});
  const analysis::Rebuilder rebuilder(whole.graph);
  for (const analysis::SavedValue& saved : rebuilder.saved())
    options.compile.memory.recompute.push_back(saved.key);
  const StepsResult got = run_steps(tied_moe_graph(6), options);
  EXPECT_EQ(got.losses, want.losses);
  EXPECT_EQ(got.states, want.states);
}

// Parameters on disk have no second packings.
void expect_equal_but_packings(const std::map<std::string, std::vector<std::byte>>& got,
                               const std::map<std::string, std::vector<std::byte>>& want) {
  for (const auto& [name, bytes] : want) {
    if (name.ends_with(".packed_transposed")) continue;
    const auto found = got.find(name);
    EXPECT_TRUE(found != got.end() && found->second == bytes) << name;
  }
}

TEST(StepsOnDisk, GiveTheBitsWithParametersThereToo) {
  for (const auto precision : {lower::Precision::kFp32, lower::Precision::kBf16})
    for (const auto& [in_backward, micro_batches] : {std::pair{false, 3}, {true, 1}, {true, 3}})
      for (const bool trivial : {false, true}) {
        SCOPED_TRACE(::testing::Message()
                     << static_cast<int>(precision) << ", in backward " << in_backward << ", of "
                     << micro_batches << " micro-batches, trivial " << trivial);
        StepsOptions options;
        options.compile.only_kernels = "ref";
        options.compile.precision = precision;
        options.compile.optimizer.in_backward = in_backward;
        options.compile.optimizer.clip_grad_norm = in_backward ? 0 : 1;
        options.end_step = 3;
        options.end_micro_batch = micro_batches;
        if (in_backward) options.compile.micro_batches = micro_batches;
        const StepsResult want = run_steps(tied_moe_graph(3), options);
        options.compile.disk = kParametersToo;
        options.compile.disk.slice_bytes = 512;
        options.compile.trivial_planners = trivial;
        options.executor.poison = true;
        StepsResult got = run_steps(tied_moe_graph(3), options);
        EXPECT_EQ(got.losses, want.losses);
        expect_equal_but_packings(got.states, want.states);
        const lower::Compiled whole = lower::compile(tied_moe_graph(3), options.compile, {});
        const analysis::Rebuilder rebuilder(whole.graph);
        for (const analysis::SavedValue& saved : rebuilder.saved())
          options.compile.memory.recompute.push_back(saved.key);
        got = run_steps(tied_moe_graph(3), options);
        EXPECT_EQ(got.losses, want.losses);
        expect_equal_but_packings(got.states, want.states);
      }
}

TEST(StepsOnDisk, GiveTheBitsOfResidentStatesOnRandomGraphs) {
  for (std::uint64_t seed = 0; seed < 12; ++seed) {
    SCOPED_TRACE(seed);
    StepsOptions options{.end_step = 3, .seed = seed};
    options.compile.only_kernels = "ref";
    const StepsResult want = run_steps(random_graph(seed), options);
    options.compile.disk = kAll;
    options.compile.disk.num_windows = 1 + static_cast<std::int32_t>(seed % 3);
    options.compile.disk.slice_bytes = 128 << seed % 4;
    options.executor.poison = true;
    const StepsResult got = run_steps(random_graph(seed), options);
    EXPECT_EQ(got.losses, want.losses);
    EXPECT_EQ(got.states, want.states);
    options.compile.disk.parameters = true;
    options.compile.disk.min_parameter_bytes = 1;
    const StepsResult without_parameters = run_steps(random_graph(seed), options);
    EXPECT_EQ(without_parameters.losses, want.losses);
    expect_equal_but_packings(without_parameters.states, want.states);
  }
}

// A budget may choose the disk if the moments do not fit in memory, or if waiting costs less than
// recomputing values.
lower::CompileOptions with_budget(std::int64_t bytes, double bytes_per_second) {
  lower::CompileOptions options;
  options.only_kernels = "ref";
  options.micro_batches = 1;
  options.memory.budget_bytes = bytes;
  options.disk.min_bytes = 1;
  options.disk_choice = {.is_allowed = true, .free_bytes = std::int64_t{1} << 30};
  options.efficiency.disk = {bytes_per_second, bytes_per_second};
  return options;
}

constexpr int kBudgetLayers = 12;

class ABudget : public ::testing::Test {
 protected:
  static void SetUpTestSuite() {
    lower::CompileOptions options;
    options.only_kernels = "ref";
    options.micro_batches = 1;
    whole_ = lower::compile(tied_moe_graph(kBudgetLayers), options, {}).plan.peak_bytes();
    for (std::int64_t bytes = whole_; bytes > 0; bytes = bytes * 95 / 100) {
      options.memory.budget_bytes = bytes;
      if (!lower::try_compile(tied_moe_graph(kBudgetLayers), options, {})) break;
      smallest_resident_ = bytes;
    }
  }

  static inline std::int64_t whole_ = 0, smallest_resident_ = 0;
};

TEST_F(ABudget, LeavesStatesInMemoryWhereTheyFit) {
  const lower::Compiled compiled =
      lower::compile(tied_moe_graph(kBudgetLayers), with_budget(whole_, 1e15), {});
  EXPECT_TRUE(compiled.plan.windows.empty());
  EXPECT_FALSE(compiled.memory.decisions.state_on_disk);
}

TEST_F(ABudget, ChoosesTheDiskWhereMemoryDoesNotHoldTheMoments) {
  const std::int64_t budget = smallest_resident_ * 95 / 100;
  lower::CompileOptions options = with_budget(budget, 1e3);
  const lower::Compiled compiled = lower::compile(tied_moe_graph(kBudgetLayers), options, {});
  EXPECT_FALSE(compiled.plan.windows.empty());
  EXPECT_TRUE(compiled.memory.decisions.state_on_disk);
  EXPECT_LE(compiled.plan.peak_bytes(), budget);
  options.disk_choice.free_bytes = compiled.plan.disk_bytes - 1;
  options.disk_choice.may_take_masters = true;  // which would need more yet
  EXPECT_THAT([&] { lower::compile(tied_moe_graph(kBudgetLayers), options, {}); },
              ThrowsMessage<plan::BudgetError>(HasSubstr("free for the optimizer's state")));
  options.disk_choice = {.refusal = "/somewhere cannot be written to"};
  EXPECT_THAT([&] { lower::compile(tied_moe_graph(kBudgetLayers), options, {}); },
              ThrowsMessage<plan::BudgetError>(
                  HasSubstr("the optimizer's state on disk: /somewhere cannot be written to")));
}

// If the moments alone on disk fit no budget, the lower 16 bits go there, then parameters.
TEST(AHalfBudget, TakesMastersThenParametersWhereTheMomentsAreNotEnough) {
  const ir::Graph graph = tied_moe_graph(4);
  lower::CompileOptions options = with_budget(0, 1e15);
  options.precision = lower::Precision::kBf16;
  options.disk.min_parameter_bytes = 1;
  std::int64_t budget = lower::compile(graph, options, {}).plan.peak_bytes();
  // To the first that is not kept; `budget` is the last that is.
  const auto shrink = [&] {
    for (options.memory.budget_bytes = budget; lower::try_compile(graph, options, {});
         options.memory.budget_bytes = budget * 95 / 100)
      budget = options.memory.budget_bytes;
  };
  const auto decisions = [&] { return lower::compile(graph, options, {}).memory.decisions; };
  shrink();
  const std::int64_t with_moments = budget;
  options.disk_choice.may_take_masters = true;
  EXPECT_TRUE(decisions().masters_on_disk);
  EXPECT_FALSE(decisions().parameters_on_disk);
  shrink();
  const std::int64_t with_masters = budget;
  EXPECT_LT(with_masters, with_moments);
  options.disk_choice.may_take_parameters = true;
  EXPECT_TRUE(decisions().parameters_on_disk);
  const lower::Compiled compiled = lower::compile(graph, options, {});
  EXPECT_LE(compiled.plan.peak_bytes(), options.memory.budget_bytes);
  shrink();
  EXPECT_LT(budget, with_masters);
  options.memory.budget_bytes = with_masters;
  EXPECT_FALSE(decisions().parameters_on_disk);
  options.memory.budget_bytes = with_moments;
  EXPECT_FALSE(decisions().masters_on_disk);
}

// Where some parameters have to go, those that the fewest calls read go first, and a step is no
// longer than with all of them there; a replay leaves the same ones in memory.
TEST(AHalfBudget, HoldsTheParametersThatMoveMost) {
  const ir::Graph graph = tied_moe_graph(8);
  lower::CompileOptions options = with_budget(0, 1e6);
  options.precision = lower::Precision::kBf16;
  options.disk.min_parameter_bytes = 1;
  options.disk_choice.may_take_masters = options.disk_choice.may_take_parameters = true;
  const auto seconds = [&](const lower::Compiled& compiled) {
    return search::price_step(compiled, plan::with_peaks({}), options.efficiency, 1).seconds;
  };
  std::size_t most_held = 0;
  double previous = 0;
  options.memory.budget_bytes = lower::compile(graph, options, {}).plan.peak_bytes() * 6 / 10;
  for (;; options.memory.budget_bytes = options.memory.budget_bytes * 95 / 100) {
    const auto outcome = lower::try_compile(graph, options, {});
    if (!outcome) break;
    const lower::Compiled& compiled = *outcome;
    const spec::Decisions& decisions = compiled.memory.decisions;
    EXPECT_LE(compiled.plan.peak_bytes(), options.memory.budget_bytes);
    EXPECT_GE(seconds(compiled), 0.97 * previous) << options.memory.budget_bytes;
    previous = seconds(compiled);
    if (!decisions.parameters_on_disk) continue;
    most_held = std::max(most_held, decisions.resident_parameters.size());
    int most_copies = 0, fewest_held = 1 << 10;
    for (const plan::ParameterOnDisk& parameter : plan::reloaded_parameters(compiled.graph)) {
      EXPECT_FALSE(decisions.resident_parameters.contains(parameter.name));
      most_copies = std::max(most_copies, parameter.num_copies);
    }
    for (const std::string& name : decisions.resident_parameters) {
      const ir::ValueId value = compiled.graph.find_state(intern(name))->before;
      int readers = 0;
      for (const ir::Node& node : compiled.graph.nodes)
        readers += node.op->name != "optimizer_step" &&
                   std::find(node.inputs.begin(), node.inputs.end(), value) != node.inputs.end();
      fewest_held = std::min(fewest_held, readers);
    }
    EXPECT_LE(most_copies, fewest_held);
    lower::CompileOptions replay = options;
    replay.memory.budget_bytes = 0;
    replay.memory.replay = decisions;
    const lower::Compiled again = lower::compile(graph, replay, {});
    EXPECT_EQ(plan::print(again.graph, again.plan), plan::print(compiled.graph, compiled.plan));
    lower::CompileOptions all = options;
    all.disk.optimizer_state = all.disk.masters = all.disk.parameters = true;
    EXPECT_LE(seconds(compiled), 1.0001 * seconds(lower::compile(graph, all, {})));
  }
  EXPECT_GT(most_held, 3u);
}

// The places of states are taken from a plan for almost this budget, where they keep it.
TEST(AHalfBudget, GoesOnFromAPlanNearby) {
  const ir::Graph graph = tied_moe_graph(4);
  lower::CompileOptions options = with_budget(0, 1e6);
  options.precision = lower::Precision::kBf16;
  options.disk_choice.may_take_masters = true;
  options.memory.budget_bytes = lower::compile(graph, options, {}).plan.peak_bytes() * 6 / 10;
  const spec::Decisions found = lower::compile(graph, options, {}).memory.decisions;
  ASSERT_TRUE(found.state_on_disk);
  options.memory.budget_bytes = options.memory.budget_bytes * 999 / 1000;
  options.warm_start = found;
  options.warm_start->num_windows = 3;  // no choice of its own
  const lower::Compiled near = lower::compile(graph, options, {});
  EXPECT_EQ(near.memory.decisions.num_windows, 3);
  EXPECT_LE(near.plan.peak_bytes(), options.memory.budget_bytes);
  options.warm_start = spec::Decisions{};  // all in memory
  const lower::Compiled other = lower::compile(graph, options, {});
  EXPECT_TRUE(other.memory.decisions.state_on_disk);
  EXPECT_LE(other.plan.peak_bytes(), options.memory.budget_bytes);
}

TEST_F(ABudget, ChoosesWhatCostsLess) {
  const lower::CompileOptions fast = with_budget(smallest_resident_, 1e15),
                              slow = with_budget(smallest_resident_, 1e3);
  const lower::Compiled on_disk = lower::compile(tied_moe_graph(kBudgetLayers), fast, {}),
                        resident = lower::compile(tied_moe_graph(kBudgetLayers), slow, {});
  EXPECT_GT(resident.memory.added_seconds, 0);
  EXPECT_TRUE(resident.plan.windows.empty());
  EXPECT_FALSE(on_disk.plan.windows.empty());
  EXPECT_LT(on_disk.memory.added_seconds, resident.memory.added_seconds);
}

TEST(DiskPrice, IsBetweenNothingAndTheTransfersAlone) {
  const lower::Compiled compiled = lower::compile(tied_moe_graph(6), on_disk(), {});
  const spec::DeviceSpec device = plan::with_peaks({});
  plan::OpEfficiency efficiency = plan::default_efficiency();
  double previous = 0;
  for (const double speed : {1e15, 1e8, 1e6, 1e4}) {
    efficiency.disk = {speed, speed};
    const double waited = plan::disk_seconds(compiled.graph, compiled.plan, device, efficiency, 2);
    const double transfers = plan::transfer_seconds(compiled.plan, efficiency.disk, 2);
    EXPECT_GE(waited, previous);
    EXPECT_LE(waited, transfers * 1.0001);  // rounding
    const plan::StepPrice price =
        plan::price_step(compiled.graph, compiled.plan, device, efficiency, 2);
    double disk = waited;
    for (const plan::SwapWindow& window : compiled.plan.windows)
      disk += plan::window_seconds(window, device);
    EXPECT_GT(disk, waited);
    EXPECT_EQ(price.disk_seconds, disk);
    // A step is no shorter than what the disk moves in it.
    EXPECT_GE(price.seconds * 1.0001, transfers);
    previous = waited;
  }
  EXPECT_GT(previous, 0);
  const lower::CompileOptions resident{.only_kernels = "ref"};
  const lower::Compiled in_memory = lower::compile(tied_moe_graph(6), resident, {});
  EXPECT_EQ(plan::disk_seconds(in_memory.graph, in_memory.plan, device, efficiency, 2), 0);
}

}  // namespace
}  // namespace anabatic::testing
