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

// `states`: graph states by their index in Program::states.
void add_windows(const ir::Graph& graph, const plan::Plan& plan,
                 const std::vector<std::int32_t>& states, runtime::Program& program);

// What moves during the calls of an action, whose nodes' positions these are. States move where
// they are updated next: in other micro-batches only what is queued of them is awaited.
std::vector<runtime::SwapPoint> swap_points(const plan::Plan& plan, spec::Action action,
                                            std::span<const std::int32_t> positions,
                                            bool moves_states);

// Throws InternalError when windows or points are not the plan's.
void verify_windows(const ir::Graph& graph, const plan::Plan& plan,
                    const std::vector<std::int32_t>& states, const runtime::Program& program);

}  // namespace anabatic::lower
