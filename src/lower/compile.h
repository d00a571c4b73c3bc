// SPDX-License-Identifier: Apache-2.0
// Takes a built graph through passes, decisions and planning to a program.
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

// `forward` is the forward graph of one micro-batch, with its objective when training. Returns a
// refusal where nothing fits options.memory.budget_bytes.
plan::Outcome<Compiled> try_compile(ir::Graph forward, const CompileOptions& options,
                                    const spec::DeviceSpec& device);

// The same, but throws plan::BudgetError instead of a refusal.
Compiled compile(ir::Graph forward, const CompileOptions& options, const spec::DeviceSpec& device);

}  // namespace anabatic::lower
