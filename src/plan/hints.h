// SPDX-License-Identifier: Apache-2.0
// memory.hot and memory.cold, of states: which may leave memory, and whether a plan obeys.
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

// May this state leave memory, which holds these of its parameter's experts? The one meaning of hot
// and cold for states: never where the parameter, or one of the experts, is hot; with `only_cold`,
// where it, or each of them, is cold.
bool may_go_to_disk(const DiskOptions& options, std::string_view parameter, Experts experts);

// By parameter, the experts at which a slice of its moments has to begin, so that hot and cold ones
// are apart from the others of their stack.
std::map<std::string, std::set<std::int64_t>, std::less<>> expert_cuts(const ir::Graph& forward,
                                                                       const DiskOptions& options);

// InvalidArgument for a hint that cannot be obeyed, with the reason: of `hot`, that names neither
// what the backward reads nor a parameter; of `cold`, that names nothing whose moments `plan` has
// on disk, nor a value that it offloads, which it does only where `offloads`; of either, that names
// experts that the stack has not. For a program that trains and updates.
void require_obeyed(const ir::Graph& graph, const Plan& plan, const DiskOptions& options,
                    bool offloads);

}  // namespace anabatic::plan
