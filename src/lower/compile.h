// SPDX-License-Identifier: Apache-2.0
// The one place that takes a built graph through passes, decisions and planning to a program.
#pragma once
#include "ir/graph.h"
#include "lower/compile_options.h"
#include "lower/planned_step.h"
#include "plan/outcome.h"
#include "runtime/program.h"
#include "spec/device_spec.h"

namespace anabatic::lower {

struct Compiled : PlannedStep {
  runtime::Program program;
};

// `forward` holds the forward graph of one micro-batch, with its objective when training. A refusal
// where options.memory.budget_bytes cannot be kept.
plan::Outcome<Compiled> try_compile(ir::Graph forward, const CompileOptions& options,
                                    const spec::DeviceSpec& device);

// plan::BudgetError instead of the refusal.
Compiled compile(ir::Graph forward, const CompileOptions& options, const spec::DeviceSpec& device);

}  // namespace anabatic::lower
