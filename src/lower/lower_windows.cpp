// SPDX-License-Identifier: Apache-2.0
#include "lower/lower_windows.h"

#include <algorithm>
#include <array>
#include <string>

#include "base/error.h"
#include "lower/planned_calls.h"

namespace anabatic::lower {
namespace {

std::int32_t state_of(const plan::Plan& plan, const std::vector<std::int32_t>& states,
                      const plan::SwapWindow& window) {
  const plan::PlannedBuffer& buffer = plan.buffers[static_cast<std::size_t>(window.buffer)];
  return states[static_cast<std::size_t>(buffer.state)];
}

std::int64_t offset_of(const plan::Plan& plan, ir::ValueId value) {
  return plan.buffers[static_cast<std::size_t>(plan.buffer_of_value[index(value)])].offset;
}

// Where in the frame a parameter's copy is read to.
std::int64_t copy_offset(const ir::Graph& graph, const plan::Plan& plan,
                         const plan::Offload& offload) {
  return offset_of(plan, graph.node(offload.reload).outputs[0]);
}

// A saved value on disk: `from` and `to` are its places in the frame before and after.
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
  for (const plan::SwapWindow& window : plan.windows)
    program.windows.push_back(
        {.state = state_of(plan, states, window),
         .offset = plan.buffers[static_cast<std::size_t>(window.buffer)].offset});
  for (const plan::Offload& offload : plan.offloads) {
    if (offload.is_of_state()) {
      program.windows.push_back({.state = states[static_cast<std::size_t>(offload.state)],
                                 .offset = copy_offset(graph, plan, offload),
                                 .is_copy = true});
      continue;
    }
    const auto region = static_cast<std::int32_t>(program.regions.size());
    const OffloadedValue value = offloaded_value(graph, plan, offload);
    program.regions.push_back({value.name, value.bytes});
    program.windows.push_back({.region = region, .offset = value.from});
    program.windows.push_back({.region = region, .offset = value.to});
  }
}

std::vector<runtime::SwapPoint> swap_points(const plan::Plan& plan, spec::Action action,
                                            std::span<const std::int32_t> positions,
                                            bool moves_states) {
  const Span span = span_of(plan, action);
  std::vector<runtime::SwapPoint> points;
  std::int32_t window = 0;
  const auto add = [&](std::int32_t position, runtime::SwapStep step, auto call) {
    if (span.contains(position))
      points.push_back({static_cast<std::int32_t>(call - positions.begin()), step, window});
  };
  const auto ahead_of = [&](std::int32_t position, runtime::SwapStep step) {
    add(position, step, std::lower_bound(positions.begin(), positions.end(), position));
  };
  const auto behind = [&](std::int32_t position, runtime::SwapStep step) {
    add(position, step, std::upper_bound(positions.begin(), positions.end(), position));
  };
  for (const plan::SwapWindow& planned : plan.windows) {
    if (moves_states) {
      ahead_of(planned.read_at, runtime::SwapStep::kRead);
      ahead_of(planned.use, runtime::SwapStep::kAwaitRead);
      behind(planned.end - 1, runtime::SwapStep::kWrite);
    }
    if (planned.written_by != plan::SwapWindow::kNoPosition)
      ahead_of(planned.written_by, runtime::SwapStep::kAwaitWrite);
    ++window;
  }
  for (const plan::Offload& offload : plan.offloads) {
    if (!offload.is_of_state()) {
      behind(offload.write_at - 1, runtime::SwapStep::kWrite);
      ahead_of(offload.written_by, runtime::SwapStep::kAwaitWrite);
      ++window;
    }
    ahead_of(offload.read_at, runtime::SwapStep::kRead);
    ahead_of(offload.needed_at, runtime::SwapStep::kAwaitRead);
    ++window;
  }
  // Before a call, writes come before reads, which may reuse their bytes. Awaits come last.
  std::stable_sort(points.begin(), points.end(),
                   [](const runtime::SwapPoint& a, const runtime::SwapPoint& b) {
                     return a.call != b.call ? a.call < b.call : a.step < b.step;
                   });
  return points;
}

namespace {

// How often each window moves, by SwapStep, in a micro-batch at this place and the update after it.
using Counts = std::vector<std::array<int, 4>>;

Counts counts_at(const runtime::Program& program, spec::Place place) {
  Counts counts(program.windows.size(), std::array<int, 4>{});
  for (const auto& [action, variants] : program.variants)
    for (const runtime::Variant& variant : variants)
      for (const runtime::SwapPoint& point : variant.swap_points)
        if (variant.places.contains(place))
          ++counts.at(static_cast<std::size_t>(point.window))[static_cast<std::size_t>(point.step)];
  return counts;
}

// The layout of a micro-batch at this place: that of its first action.
std::int32_t layout_at(const runtime::Program& program, spec::Place place) {
  for (const auto& [action, variants] : program.variants)
    for (const runtime::Variant& variant : variants)
      if (variant.places.contains(place)) return variant.layout;
  return 0;
}

void check_counts(const plan::Plan& plan, const Counts& counts, bool with_states) {
  std::size_t next = 0;
  const auto check = [&](bool is_checked, std::array<int, 4> planned) {
    ANABATIC_CHECK(!is_checked || counts[next] == planned,
                   "[lower verifier] window {} does not move as planned", next);
    ++next;
  };
  for (const plan::SwapWindow& window : plan.windows)
    check(with_states, {1, 1, window.written_by == plan::SwapWindow::kNoPosition ? 0 : 1, 1});
  for (const plan::Offload& offload : plan.offloads) {
    if (!offload.is_of_state()) check(true, {1, 0, 1, 0});
    check(true, {0, 1, 0, 1});
  }
}

}  // namespace

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
  for (const spec::Place place : spec::kPlaces)
    if (plan.places.contains(place) && layout_at(program, place) == 0)
      check_counts(plan, counts_at(program, place), spec::kStepEnds.contains(place));
  for (std::size_t i = 0; i < num_states; ++i) {
    const plan::SwapWindow& planned = plan.windows[i];
    const runtime::SwapWindow& window = program.windows[i];
    ANABATIC_CHECK(
        window.state == state_of(plan, states, planned) &&
            window.offset == plan.buffers[static_cast<std::size_t>(planned.buffer)].offset &&
            program.states[static_cast<std::size_t>(window.state)].is_on_disk,
        "[lower verifier] window {} is not the planned one", i);
  }
  std::size_t next = num_states, region = 0;
  for (const plan::Offload& offload : plan.offloads) {
    if (offload.is_of_state()) {
      const runtime::SwapWindow& copy = program.windows[next];
      ANABATIC_CHECK(copy.is_copy &&
                         copy.state == states[static_cast<std::size_t>(offload.state)] &&
                         copy.offset == copy_offset(graph, plan, offload),
                     "[lower verifier] copy {} is not the planned one", next);
      ++next;
      continue;
    }
    const OffloadedValue value = offloaded_value(graph, plan, offload);
    const std::size_t from = next, to = from + 1;
    ANABATIC_CHECK(program.windows[from].offset == value.from &&
                       program.windows[to].offset == value.to &&
                       program.regions[region].bytes == value.bytes,
                   "[lower verifier] offload {} is not the planned one", value.name);
    next += 2;
    ++region;
  }
}

}  // namespace anabatic::lower
