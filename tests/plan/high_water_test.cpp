// SPDX-License-Identifier: Apache-2.0
// What the timelines foretell of the frame against the bytes that calls of a real step touch, in
// the order in which the executor runs them: neither lifetimes nor the graph have a part in it.
#include <gtest/gtest.h>

#include <algorithm>
#include <vector>

#include "base/philox.h"
#include "device/topology.h"
#include "plan/memory_menu.h"
#include "plan/offsets.h"
#include "plan/training_fixture.h"

namespace anabatic::testing {
namespace {

// In units of the alignment of offsets.
struct Touch {
  std::int64_t begin = 0, end = 0;
  bool reads = false;
};
using Touches = std::vector<Touch>;  // of one call

bool is_touched(const Touches& call, std::int64_t unit) {
  return std::any_of(call.begin(), call.end(),
                     [&](const Touch& touch) { return touch.begin <= unit && unit < touch.end; });
}
bool is_read(const Touches& call, std::int64_t unit) {
  return std::any_of(call.begin(), call.end(), [&](const Touch& touch) {
    return touch.reads && touch.begin <= unit && unit < touch.end;
  });
}

class Recorder {
 public:
  runtime::Observer observer() {
    return {.on_call =
                [](void* self, const runtime::CallEvent& event) {
                  static_cast<Recorder*>(self)->add(event.call);
                },
            .context = this};
  }

  // Outputs of the program are read after the step.
  void end(const runtime::Program& program) {
    calls_.emplace_back();
    for (const runtime::NamedOperand& output : program.layouts.front().outputs)
      touch(output.operand, true);
  }

  // Most bytes that hold something at a call: what it touches, and what was touched before it and
  // is read after it ahead of being written anew.
  std::int64_t most_bytes() const {
    std::vector<std::int64_t> units(calls_.size(), 0);
    for (std::int64_t unit = 0; unit < num_units_; ++unit) {
      const auto first = std::find_if(calls_.begin(), calls_.end(),
                                      [&](const Touches& call) { return is_touched(call, unit); });
      bool is_read_later = false;
      for (auto i = static_cast<std::size_t>(calls_.end() - first); i-- > 0;) {
        const auto call = first + static_cast<std::ptrdiff_t>(i);
        const bool touched = is_touched(*call, unit);
        units[static_cast<std::size_t>(call - calls_.begin())] += touched || is_read_later;
        if (touched) is_read_later = is_read(*call, unit);
      }
    }
    return plan::kAlignmentBytes * *std::max_element(units.begin(), units.end());
  }

  std::int64_t highest_byte() const { return num_units_ * plan::kAlignmentBytes; }

 private:
  void add(const runtime::Call& call) {
    calls_.emplace_back();
    for (const runtime::Operand& input : call.inputs) touch(input, true);
    for (std::size_t i = 0; i < call.outputs.size(); ++i) touch(call.outputs[i], call.adds[i]);
    touch(call.workspace_offset, call.workspace_bytes, false);
  }

  void touch(const runtime::Operand& operand, bool reads) {
    if (operand.arena == spec::Arena::kFrame)
      touch(operand.offset, operand.type.num_bytes(), reads);
  }

  void touch(std::int64_t offset, std::int64_t bytes, bool reads) {
    if (bytes == 0) return;
    const std::int64_t begin = offset / plan::kAlignmentBytes,
                       end = plan::align_bytes(offset + bytes) / plan::kAlignmentBytes;
    calls_.back().push_back({begin, end, reads});
    num_units_ = std::max(num_units_, end);
  }

  std::vector<Touches> calls_;
  std::int64_t num_units_ = 0;
};

struct Marks {
  std::int64_t most = 0, highest = 0;
  std::int64_t planned_most = 0, planned_highest = 0;
};

Marks marks_of(const ir::Graph& forward, const lower::CompileOptions& options, std::uint64_t seed) {
  Recorder recorder;
  run_steps(forward, {.compile = options,
                      .observer = recorder.observer(),
                      .end_step = 1,
                      .end_micro_batch = 1,
                      .seed = seed});
  const lower::Compiled compiled = lower::compile(forward, options, {.num_threads = 1});
  recorder.end(compiled.program);
  return {recorder.most_bytes(), recorder.highest_byte(), compiled.plan.frame_live_bytes,
          compiled.plan.frame_bytes};
}

lower::CompileOptions options_of(lower::Precision precision, std::int64_t micro_batches) {
  lower::CompileOptions options;
  options.precision = precision;
  options.micro_batches = micro_batches;
  return options;
}

TEST(HighWater, IsWhatThePlanSays) {
  for (std::uint64_t seed = 0; seed < 16; ++seed)
    for (const std::int64_t micro_batches : {0, 1}) {
      SCOPED_TRACE(seed);
      const Marks marks =
          marks_of(random_graph(seed), options_of(lower::Precision::kFp32, micro_batches), seed);
      EXPECT_EQ(marks.most, marks.planned_most);
      EXPECT_EQ(marks.highest, marks.planned_highest);
    }
  for (const lower::Precision precision : {lower::Precision::kFp32, lower::Precision::kBf16})
    for (const std::int64_t micro_batches : {0, 1}) {
      const Marks marks = marks_of(tied_moe_graph(3), options_of(precision, micro_batches), 1);
      EXPECT_EQ(marks.most, marks.planned_most);
      EXPECT_EQ(marks.highest, marks.planned_highest);
    }
}

// What a menu simulates for recomputed values, before any plan is made of it.
TEST(HighWater, IsForetoldByTheMenu) {
  lower::CompileOptions options = options_of(lower::Precision::kBf16, 0);
  const ir::Graph forward = tied_moe_graph(4);
  const lower::Compiled whole = lower::compile(forward, options, {.num_threads = 1});
  const spec::DeviceSpec device = plan::with_peaks(device::describe_cpu(1));
  const plan::OpEfficiency efficiency = plan::default_efficiency();
  const plan::MemoryMenu menu(whole.graph, whole.plan, device, efficiency);
  EXPECT_EQ(menu.evaluate(std::vector<bool>(menu.items().size(), false), 0).peak_bytes,
            whole.plan.frame_live_bytes);
  for (std::uint64_t seed = 1; seed < 20; ++seed) {
    std::vector<bool> chosen(menu.items().size());
    options.memory.recompute.clear();
    for (std::size_t i = 0; i < chosen.size(); ++i)
      if ((chosen[i] = random_below(seed, 0, i, 3) == 0))
        options.memory.recompute.push_back(menu.items()[i].name);
    const Marks marks = marks_of(forward, options, seed);
    EXPECT_EQ(marks.most, marks.planned_most) << seed;
    const std::int64_t foretold = menu.evaluate(chosen, 0).peak_bytes;
    EXPECT_LE(marks.most, foretold + foretold / 8) << seed;
    EXPECT_LE(foretold, marks.most + marks.most / 8) << seed;
  }
}

}  // namespace
}  // namespace anabatic::testing
