// SPDX-License-Identifier: Apache-2.0
// What a plan's bytes go to, and what would shrink it: for those whose budget is too small.
#pragma once
#include <vector>

#include "ir/graph.h"
#include "plan/outcome.h"
#include "plan/plan.h"

namespace anabatic::plan {

// The takers of `plan`'s bytes at its peak (plan/account.h), the largest first, each with what
// would shrink it. Those of less than a hundredth are left out.
std::vector<Consumer> largest_consumers(const ir::Graph& graph, const Plan& plan);

// What the activations among them are called.
inline constexpr const char* kActivations = "activations and workspaces";

// Whether any weight stays packed for input-gradients too.
bool has_second_packings(const ir::Graph& graph);

}  // namespace anabatic::plan
