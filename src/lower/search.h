// SPDX-License-Identifier: Apache-2.0
// Where states are and how weights are packed: the step that keeps the budget and takes the least.
#pragma once
#include "ir/graph.h"
#include "lower/compile_options.h"
#include "lower/planned_step.h"
#include "plan/outcome.h"
#include "spec/device_spec.h"

namespace anabatic::lower {

// `forward` as in lower::compile.
plan::Outcome<PlannedStep> find_step(ir::Graph forward, const CompileOptions& options,
                                     const spec::DeviceSpec& device);

}  // namespace anabatic::lower
