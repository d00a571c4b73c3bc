// SPDX-License-Identifier: Apache-2.0
#include "lower/lower_windows.h"

#include <algorithm>
#include <array>
#include <string>

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
      if (!planned.is_offloaded) next += planned.zero_fill == plan::ZeroFill::kNone ? 1 : 2;
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

std::int64_t offset_of(const plan::Plan& plan, ir::ValueId value) {
  return plan.buffers[static_cast<std::size_t>(plan.buffer_of_value[index(value)])].offset;
}

// Where a parameter's copy comes to.
std::int64_t copy_offset(const ir::Graph& graph, const plan::Plan& plan,
                         const plan::Offload& offload) {
  return offset_of(plan, graph.node(offload.reload).outputs[0]);
}

// Where a value goes from, and comes back to.
struct OffloadedValue {
  std::string name;
  std::int64_t bytes = 0, from = 0, to = 0;
};

OffloadedValue offloaded_value(const ir::Graph& graph, const plan::Plan& plan,
                               const plan::Offload& offload) {
  const ir::Node& node = graph.node(offload.reload);
  const std::string_view name = text(graph.value(node.inputs[0]).name);
  return {.name = name.empty() ? plan::node_label(node) : std::string(name),
          .bytes = graph.value(node.inputs[0]).type.num_bytes(),
          .from = offset_of(plan, node.inputs[0]),
          .to = offset_of(plan, node.outputs[0])};
}

}  // namespace

bool is_on_disk(const ir::Graph& graph, const plan::Plan& plan, const ir::State& state) {
  const std::int32_t buffer = plan.buffer_of_value[index(state.before)];
  return std::any_of(plan.windows.begin(), plan.windows.end(),
                     [&](const plan::SwapWindow& window) { return window.buffer == buffer; }) ||
         std::any_of(plan.offloads.begin(), plan.offloads.end(), [&](const plan::Offload& offload) {
           return offload.is_of_state() &&
                  graph.states[static_cast<std::size_t>(offload.state)].name == state.name;
         });
}

void add_windows(const ir::Graph& graph, const plan::Plan& plan,
                 const std::vector<std::int32_t>& states, runtime::Program& program) {
  ANABATIC_CHECK(states.size() == graph.states.size(), "[lower] {} of {} states", states.size(),
                 graph.states.size());
  const std::vector<Calls> calls = calls_by_position(plan);
  const auto last_window = [&] { return static_cast<std::int32_t>(program.windows.size()) - 1; };
  const auto ahead_of = [&](std::int32_t position, runtime::SwapStep step) {
    const Calls& at = calls[static_cast<std::size_t>(position)];
    program.swap_points[at.action].push_back({at.begin, step, last_window()});
  };
  const auto behind = [&](std::int32_t position, runtime::SwapStep step) {
    const Calls& at = calls[static_cast<std::size_t>(position)];
    program.swap_points[at.action].push_back({at.end, step, last_window()});
  };
  for (const plan::SwapWindow& window : plan.windows) {
    program.windows.push_back(
        {.state = state_of(plan, states, window),
         .offset = plan.buffers[static_cast<std::size_t>(window.buffer)].offset});
    ahead_of(window.read_at, runtime::SwapStep::kRead);
    ahead_of(window.use, runtime::SwapStep::kAwaitRead);
    behind(window.end - 1, runtime::SwapStep::kWrite);
    if (window.written_by != plan::SwapWindow::kNoPosition)
      ahead_of(window.written_by, runtime::SwapStep::kAwaitWrite);
  }
  for (const plan::Offload& offload : plan.offloads) {
    if (offload.is_of_state()) {
      program.windows.push_back({.state = states[static_cast<std::size_t>(offload.state)],
                                 .offset = copy_offset(graph, plan, offload),
                                 .is_copy = true});
      ahead_of(offload.read_at, runtime::SwapStep::kRead);
      ahead_of(offload.needed_at, runtime::SwapStep::kAwaitRead);
      continue;
    }
    const auto region = static_cast<std::int32_t>(program.regions.size());
    const OffloadedValue value = offloaded_value(graph, plan, offload);
    program.regions.push_back({value.name, value.bytes});
    program.windows.push_back({.region = region, .offset = value.from});
    behind(offload.write_at - 1, runtime::SwapStep::kWrite);
    ahead_of(offload.written_by, runtime::SwapStep::kAwaitWrite);
    program.windows.push_back({.region = region, .offset = value.to});
    ahead_of(offload.read_at, runtime::SwapStep::kRead);
    ahead_of(offload.needed_at, runtime::SwapStep::kAwaitRead);
  }
  // A read follows the write whose bytes it takes over, and is queued before anything is awaited.
  for (auto& [action, points] : program.swap_points)
    std::stable_sort(points.begin(), points.end(),
                     [](const runtime::SwapPoint& a, const runtime::SwapPoint& b) {
                       return a.call != b.call ? a.call < b.call : a.step < b.step;
                     });
}

void verify_windows(const ir::Graph& graph, const plan::Plan& plan,
                    const std::vector<std::int32_t>& states, const runtime::Program& program) {
  const std::size_t num_states = plan.windows.size();
  std::size_t num_windows = num_states, num_regions = 0;
  for (const plan::Offload& offload : plan.offloads) {
    num_windows += offload.is_of_state() ? 1 : 2;
    num_regions += !offload.is_of_state();
  }
  ANABATIC_CHECK(program.windows.size() == num_windows && program.regions.size() == num_regions,
                 "[lower verifier] {} windows, {} planned", program.windows.size(), num_windows);
  std::vector<std::array<int, 4>> counts(program.windows.size(), std::array<int, 4>{});
  for (const auto& [action, points] : program.swap_points)
    for (const runtime::SwapPoint& point : points)
      ++counts.at(static_cast<std::size_t>(point.window))[static_cast<std::size_t>(point.step)];
  for (std::size_t i = 0; i < num_states; ++i) {
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
  std::size_t next = num_states, region = 0;
  for (const plan::Offload& offload : plan.offloads) {
    if (offload.is_of_state()) {
      const runtime::SwapWindow& copy = program.windows[next];
      ANABATIC_CHECK(copy.is_copy &&
                         copy.state == states[static_cast<std::size_t>(offload.state)] &&
                         copy.offset == copy_offset(graph, plan, offload) &&
                         counts[next] == (std::array<int, 4>{0, 1, 0, 1}),
                     "[lower verifier] copy {} is not the planned one", next);
      ++next;
      continue;
    }
    const OffloadedValue value = offloaded_value(graph, plan, offload);
    const std::size_t from = next, to = from + 1;
    ANABATIC_CHECK(program.windows[from].offset == value.from &&
                       program.windows[to].offset == value.to &&
                       program.regions[region].bytes == value.bytes &&
                       counts[from] == (std::array<int, 4>{1, 0, 1, 0}) &&
                       counts[to] == (std::array<int, 4>{0, 1, 0, 1}),
                   "[lower verifier] offload {} is not the planned one", value.name);
    next += 2;
    ++region;
  }
}

}  // namespace anabatic::lower
