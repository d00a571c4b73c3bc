// SPDX-License-Identifier: Apache-2.0
// Where states are and how weights are packed: finds the step that fits the budget and takes the
// least time.
#pragma once
#include "ir/graph.h"
#include "search/compile_options.h"
#include "search/planned_step.h"
#include "spec/device_spec.h"

namespace anabatic::search {

// `forward` as in lower::compile.
Outcome find_step(ir::Graph forward, const CompileOptions& options, const spec::DeviceSpec& device);

}  // namespace anabatic::search
