// SPDX-License-Identifier: Apache-2.0
// The one place that takes a built graph through passes, decisions and planning to a program.
#pragma once
#include "ir/graph.h"
#include "plan/outcome.h"
#include "runtime/program.h"
#include "search/compile_options.h"
#include "search/planned_step.h"
#include "spec/device_spec.h"
#include "spec/training.h"

namespace anabatic::lower {

using search::CompileOptions;
using spec::OptimizerOptions;
using spec::Precision;

struct Compiled : search::PlannedStep {
  runtime::Program program;
};

// `forward` holds the forward graph of one micro-batch, with its objective when training. A refusal
// where options.memory.budget_bytes cannot be kept.
plan::Outcome<Compiled> try_compile(ir::Graph forward, const CompileOptions& options,
                                    const spec::DeviceSpec& device);

// plan::BudgetError instead of the refusal.
Compiled compile(ir::Graph forward, const CompileOptions& options, const spec::DeviceSpec& device);

}  // namespace anabatic::lower
