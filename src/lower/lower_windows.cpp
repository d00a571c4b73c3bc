// SPDX-License-Identifier: Apache-2.0
#include "lower/lower_windows.h"

#include <algorithm>
#include <array>

#include "base/error.h"

namespace anabatic::lower {
namespace {

// Where the node at a position of the plan stands among the calls.
struct Calls {
  spec::Action action{};
  std::int32_t begin = 0, end = 0;
};

std::vector<Calls> calls_by_position(const plan::Plan& plan) {
  std::vector<Calls> result;
  for (const auto& [action, order] : plan.orders) {
    std::int32_t next = 0;
    for (const plan::PlannedNode& planned : order) {
      const std::int32_t begin = next;
      next += planned.zero_fill == plan::ZeroFill::kNone ? 1 : 2;
      result.push_back({action, begin, next});
    }
  }
  return result;
}

std::int32_t state_of(const plan::Plan& plan, const std::vector<std::int32_t>& states,
                      const plan::SwapWindow& window) {
  const plan::PlannedBuffer& buffer = plan.buffers[static_cast<std::size_t>(window.buffer)];
  return states[static_cast<std::size_t>(buffer.state)];
}

}  // namespace

bool is_on_disk(const plan::Plan& plan, const ir::State& state) {
  const std::int32_t buffer = plan.buffer_of_value[index(state.before)];
  return std::any_of(plan.windows.begin(), plan.windows.end(),
                     [&](const plan::SwapWindow& window) { return window.buffer == buffer; });
}

void add_windows(const ir::Graph& graph, const plan::Plan& plan,
                 const std::vector<std::int32_t>& states, runtime::Program& program) {
  ANABATIC_CHECK(states.size() == graph.states.size(), "[lower] {} of {} states", states.size(),
                 graph.states.size());
  const std::vector<Calls> calls = calls_by_position(plan);
  for (std::size_t i = 0; i < plan.windows.size(); ++i) {
    const plan::SwapWindow& window = plan.windows[i];
    const auto index = static_cast<std::int32_t>(i);
    program.windows.push_back({state_of(plan, states, window),
                               plan.buffers[static_cast<std::size_t>(window.buffer)].offset});
    const auto ahead_of = [&](std::int32_t position, runtime::SwapStep step) {
      const Calls& at = calls[static_cast<std::size_t>(position)];
      program.swap_points[at.action].push_back({at.begin, step, index});
    };
    ahead_of(window.read_at, runtime::SwapStep::kRead);
    ahead_of(window.use, runtime::SwapStep::kAwaitRead);
    const Calls& last = calls[static_cast<std::size_t>(window.end - 1)];
    program.swap_points[last.action].push_back({last.end, runtime::SwapStep::kWrite, index});
    if (window.written_by != plan::SwapWindow::kNoPosition)
      ahead_of(window.written_by, runtime::SwapStep::kAwaitWrite);
  }
  // A read follows the write whose bytes it takes over, and is queued before anything is awaited.
  for (auto& [action, points] : program.swap_points)
    std::stable_sort(points.begin(), points.end(),
                     [](const runtime::SwapPoint& a, const runtime::SwapPoint& b) {
                       return a.call != b.call ? a.call < b.call : a.step < b.step;
                     });
}

void verify_windows(const plan::Plan& plan, const std::vector<std::int32_t>& states,
                    const runtime::Program& program) {
  ANABATIC_CHECK(program.windows.size() == plan.windows.size(),
                 "[lower verifier] {} windows, {} planned", program.windows.size(),
                 plan.windows.size());
  std::vector<std::array<int, 4>> counts(plan.windows.size(), std::array<int, 4>{});
  for (const auto& [action, points] : program.swap_points)
    for (const runtime::SwapPoint& point : points)
      ++counts.at(static_cast<std::size_t>(point.window))[static_cast<std::size_t>(point.step)];
  for (std::size_t i = 0; i < plan.windows.size(); ++i) {
    const plan::SwapWindow& planned = plan.windows[i];
    const runtime::SwapWindow& window = program.windows[i];
    const int awaits = planned.written_by == plan::SwapWindow::kNoPosition ? 0 : 1;
    ANABATIC_CHECK(
        window.state == state_of(plan, states, planned) &&
            window.offset == plan.buffers[static_cast<std::size_t>(planned.buffer)].offset &&
            program.states[static_cast<std::size_t>(window.state)].is_on_disk &&
            counts[i] == (std::array<int, 4>{1, 1, awaits, 1}),
        "[lower verifier] window {} is not the planned one", i);
  }
}

}  // namespace anabatic::lower
