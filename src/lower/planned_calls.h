// SPDX-License-Identifier: Apache-2.0
// The calls of a plan's nodes, and the micro-batches that run each.
#pragma once
#include <cstdint>
#include <vector>

#include "ir/graph.h"
#include "plan/plan.h"
#include "search/planned_step.h"
#include "spec/step.h"

namespace anabatic::lower {

struct PlannedCall {
  spec::Action action{};
  std::int32_t position = 0;  // of the node in forward ++ backward ++ update
  const plan::PlannedNode* planned = nullptr;
  spec::Places places{};      // of the micro-batches that run it
  bool is_zero_fill = false;  // zeroes before the node
  std::vector<bool> adds{};   // per output
};

// In the order of Program::calls, for micro-batches at these places. A node whose first micro-batch
// assigns becomes two calls where later ones add.
std::vector<PlannedCall> planned_calls(const ir::Graph& graph, const plan::Plan& plan,
                                       spec::Places places);

// Positions of an action's nodes in the plan: [begin, end).
struct Span {
  std::int32_t begin = 0, end = 0;
  bool contains(std::int32_t position) const { return begin <= position && position < end; }
};
Span span_of(const plan::Plan& plan, spec::Action wanted);

// The graph, plan and calls of one layout of a program. Points into the step.
struct PlannedLayout {
  const ir::Graph* graph = nullptr;
  const plan::Plan* plan = nullptr;
  spec::Places places{};
  std::vector<PlannedCall> calls{};
};

// The layout of the step, then that of a first micro-batch with its own plan, without an update.
std::vector<PlannedLayout> planned_layouts(const search::PlannedStep& step);

}  // namespace anabatic::lower
