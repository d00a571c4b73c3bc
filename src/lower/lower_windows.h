// SPDX-License-Identifier: Apache-2.0
// Windows and offloads of a plan → the points of a program at which states and activations move
// between frame and disk.
#pragma once
#include <cstdint>
#include <span>
#include <vector>

#include "ir/graph.h"
#include "plan/plan.h"
#include "runtime/program.h"

namespace anabatic::lower {

bool is_on_disk(const ir::Graph& graph, const plan::Plan& plan, const ir::State& state);

// `states`: by graph state, its index in Program::states.
void add_windows(const ir::Graph& graph, const plan::Plan& plan,
                 const std::vector<std::int32_t>& states, runtime::Program& program);

// Transfers during the calls of an action; `positions` are those of the calls' nodes.
// `moves_states` is for a step's last micro-batch and its update: other micro-batches only await
// queued writes.
std::vector<runtime::SwapPoint> swap_points(const plan::Plan& plan, spec::Action action,
                                            std::span<const std::int32_t> positions,
                                            bool moves_states);

// Throws InternalError when windows or points differ from the plan's.
void verify_windows(const ir::Graph& graph, const plan::Plan& plan,
                    const std::vector<std::int32_t>& states, const runtime::Program& program);

}  // namespace anabatic::lower
