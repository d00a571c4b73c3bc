// SPDX-License-Identifier: Apache-2.0
// The largest uses of a plan's bytes, and what would shrink each, for a budget that is too small.
#pragma once
#include <vector>

#include "ir/graph.h"
#include "plan/outcome.h"
#include "plan/plan.h"

namespace anabatic::plan {

// The uses of `plan`'s bytes at its peak (plan/account.h), the largest first, each with what would
// shrink it. Uses of less than a hundredth are left out.
std::vector<Consumer> largest_consumers(const ir::Graph& graph, const Plan& plan);

// The name of the activations among them.
inline constexpr const char* kActivations = "activations and workspaces";

// Whether any weight has a second packing for input gradients.
bool has_second_packings(const ir::Graph& graph);
// Whether any weight has a packing that is not the weight itself.
bool has_packings(const ir::Graph& graph);

}  // namespace anabatic::plan
