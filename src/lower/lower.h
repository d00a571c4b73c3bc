// SPDX-License-Identifier: Apache-2.0
// Plan → Program: operands become (arena, offset), zero fills become calls, kernels prepare their
// constants. What a plan says of first and last micro-batches becomes variants of its actions.
#pragma once
#include "ir/graph.h"
#include "plan/plan.h"
#include "runtime/program.h"
#include "search/planned_step.h"
#include "spec/device_spec.h"

namespace anabatic::lower {

// Every gradient state is an output under its name, besides the graph's outputs; not where
// gradients lie in the frame and die in the update.
runtime::Program lower(const ir::Graph& graph, const plan::Plan& plan,
                       const spec::DeviceSpec& device);

// With a layout of its own for a first micro-batch that has its own plan
// (plan/first_micro_batch.h).
runtime::Program lower(const search::PlannedStep& step, const spec::DeviceSpec& device);

// Throws InternalError when the calls, operands or modes of a place of micro-batches are not the
// plan's, or when a step's schedule would be wrong (runtime/verify_schedule.h). `lower` has done
// it.
void verify(const ir::Graph& graph, const plan::Plan& plan, const runtime::Program& program);

// Likewise of the first micro-batch's layout, and when it shares arenas, states, inputs or
// gradients with the program's other calls otherwise than at one place.
void verify_first(const ir::Graph& graph, const plan::Plan& plan, const runtime::Program& program);

}  // namespace anabatic::lower
