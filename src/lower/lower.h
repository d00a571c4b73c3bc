// SPDX-License-Identifier: Apache-2.0
// Plan → Program: operands become (arena, offset), zero fills become calls, kernels prepare their
// constants.
#pragma once
#include "ir/graph.h"
#include "plan/plan.h"
#include "runtime/program.h"
#include "spec/device_spec.h"

namespace anabatic::lower {

// Every gradient state is an output under its name, besides the graph's outputs; not where
// gradients lie in the frame and die in the update.
runtime::Program lower(const ir::Graph& graph, const plan::Plan& plan,
                       const spec::DeviceSpec& device);

// Of a first micro-batch's own plan (plan/first_micro_batch.h).
runtime::FirstMicroBatch lower_first(const ir::Graph& graph, const plan::Plan& plan,
                                     const spec::DeviceSpec& device);

// Throws InternalError when the program's calls, operands or modes are not the plan's.
void verify(const ir::Graph& graph, const plan::Plan& plan, const runtime::Program& program);

// Likewise of Program::first, and when it shares arenas, states, inputs or gradients with the
// program's other calls otherwise than at one place.
void verify_first(const ir::Graph& graph, const plan::Plan& plan, const runtime::Program& program);

}  // namespace anabatic::lower
