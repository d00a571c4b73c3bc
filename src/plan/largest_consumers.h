// SPDX-License-Identifier: Apache-2.0
// What a plan's bytes go to, and what would shrink it: for those whose budget is too small.
#pragma once
#include <string>

#include "ir/graph.h"
#include "plan/plan.h"

namespace anabatic::plan {

// The three largest takers of `plan`'s bytes at its peak (plan/account.h), each with what would
// shrink it: for a BudgetError.
std::string largest_consumers(const ir::Graph& graph, const Plan& plan);

// Whether any weight stays packed for input-gradients too.
bool has_second_packings(const ir::Graph& graph);

}  // namespace anabatic::plan
