// SPDX-License-Identifier: Apache-2.0
// Plan → Program: operands become (arena, offset), zero fills become calls, kernels prepare their
// constants. Differences between first and last micro-batches become variants of actions.
#pragma once
#include "ir/graph.h"
#include "plan/plan.h"
#include "runtime/program.h"
#include "search/planned_step.h"
#include "spec/device_spec.h"

namespace anabatic::lower {

// The outputs are those of the graph and every gradient state under its name. Gradients in the
// frame, which die in the update, are no outputs.
runtime::Program lower(const ir::Graph& graph, const plan::Plan& plan,
                       const spec::DeviceSpec& device);

// A first micro-batch with its own plan (plan/first_micro_batch.h) gets a second layout.
runtime::Program lower(const search::PlannedStep& step, const spec::DeviceSpec& device);

// Throws InternalError when calls, operands or modes at a place of micro-batches differ from the
// plan's, or when a step's schedule would be wrong (runtime/verify_schedule.h). `lower` calls it.
void verify(const ir::Graph& graph, const plan::Plan& plan, const runtime::Program& program);

// The same for the first micro-batch's layout. Also throws where its arenas, states, inputs or
// gradients are not at the same places as in the first layout.
void verify_first(const ir::Graph& graph, const plan::Plan& plan, const runtime::Program& program);

}  // namespace anabatic::lower
