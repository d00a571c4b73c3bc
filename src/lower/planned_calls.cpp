// SPDX-License-Identifier: Apache-2.0
#include "lower/planned_calls.h"

#include <utility>

namespace anabatic::lower {
namespace {

std::vector<bool> adds_of(const plan::PlannedNode& planned, bool is_first) {
  std::vector<bool> result;
  for (const plan::WriteMode mode : planned.modes)
    result.push_back(mode == plan::WriteMode::kAccumulate ||
                     (mode == plan::WriteMode::kFirstAssigns && !is_first));
  return result;
}

}  // namespace

std::vector<PlannedCall> planned_calls(const ir::Graph& graph, const plan::Plan& plan,
                                       spec::Places places) {
  std::vector<PlannedCall> result;
  std::int32_t position = -1;
  for (const auto& [action, order] : plan.orders)
    for (const plan::PlannedNode& planned : order) {
      ++position;
      if (!planned.is_call()) continue;
      PlannedCall call{.action = action, .position = position, .planned = &planned};
      const auto add = [&](spec::Places where) {
        call.places = where;
        if (!where.is_empty()) result.push_back(call);
      };
      // A node of the backward that updates states runs after the last micro-batch's contribution.
      const bool waits = action != spec::Action::kUpdate && graph.node(planned.node).is_of_update();
      const spec::Places where = waits ? places & spec::kStepEnds : places;
      if (planned.zero_fill != plan::ZeroFill::kNone) {
        call.is_zero_fill = true;
        call.adds = {false};
        add(planned.zero_fill == plan::ZeroFill::kAlways ? where : where & spec::kLeafBegins);
        call.is_zero_fill = false;
      }
      call.adds = adds_of(planned, true);
      std::vector<bool> later = adds_of(planned, false);
      if (later == call.adds) {
        add(where);
        continue;
      }
      add(where & spec::kLeafBegins);
      call.adds = std::move(later);
      add(where - spec::kLeafBegins);
    }
  return result;
}

Span span_of(const plan::Plan& plan, spec::Action wanted) {
  Span span;
  for (const auto& [action, order] : plan.orders) {
    span = {span.end, span.end + static_cast<std::int32_t>(order.size())};
    if (action == wanted) break;
  }
  return span;
}

std::vector<PlannedLayout> planned_layouts(const search::PlannedStep& step) {
  std::vector<PlannedLayout> result;
  const auto add = [&](const ir::Graph& graph, const plan::Plan& plan, spec::Places places) {
    result.push_back({&graph, &plan, places, planned_calls(graph, plan, places)});
  };
  if (!step.first) {
    add(step.graph, step.plan, step.plan.places);
    return result;
  }
  add(step.graph, step.plan, step.plan.places - step.first->plan.places);
  add(step.first->graph, step.first->plan, step.first->plan.places);
  std::erase_if(result.back().calls,
                [](const PlannedCall& call) { return call.action == spec::Action::kUpdate; });
  return result;
}

}  // namespace anabatic::lower
