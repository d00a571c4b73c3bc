// SPDX-License-Identifier: Apache-2.0
// A step's first micro-batch can also use the bytes of gradients that are not started. A gradient
// starts with its first contribution, in that micro-batch, and lives through all later ones.
#pragma once
#include <cstdint>
#include <optional>

#include "ir/graph.h"
#include "plan/plan.h"

namespace anabatic::plan {

// `plan` for a frame of `frame_bytes`: values and workspaces that do not fit there are in the
// gradients' arena, where gradients stay at their offsets. None if that has no room either. For
// steps with nothing but activations on disk; `plan` has several micro-batches.
std::optional<Plan> plan_among_gradients(const ir::Graph& graph, const Plan& plan,
                                         std::int64_t frame_bytes);

// A step whose gradients are values of the frame, which live to its end. It gives the bytes that a
// first micro-batch has at each call. Has no addresses.
Plan with_gradients_in_frame(Plan plan);

}  // namespace anabatic::plan
