// SPDX-License-Identifier: Apache-2.0
// memory.hot and memory.cold for states: which may leave memory, and whether a plan obeys.
#pragma once
#include <cstdint>
#include <functional>
#include <map>
#include <set>
#include <string>
#include <string_view>

#include "ir/graph.h"
#include "plan/hint_names.h"
#include "plan/plan.h"

namespace anabatic::plan {

// Whether a state with these of its parameter's experts may leave memory. Never if the parameter,
// or one of the experts, is hot. With `only_cold`, only if it, or each of them, is cold. This is
// the one definition of hot and cold for states.
bool may_go_to_disk(const DiskOptions& options, std::string_view parameter, Experts experts);

// For each parameter, the experts at which a slice of its moments must begin, so that hot and cold
// experts are separate from the others of their stack.
std::map<std::string, std::set<std::int64_t>, std::less<>> expert_cuts(const ir::Graph& forward,
                                                                       const DiskOptions& options);

// InvalidArgument with the reason for a hint that cannot be obeyed. A hint of `hot` must name
// something that the backward reads, or a parameter. A hint of `cold` must name something whose
// moments `plan` has on disk or, if `offloads`, a value that it offloads. Experts must exist in the
// stack. For a program that trains and updates.
void require_obeyed(const ir::Graph& graph, const Plan& plan, const DiskOptions& options,
                    bool offloads);

}  // namespace anabatic::plan
