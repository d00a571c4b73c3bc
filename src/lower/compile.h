// SPDX-License-Identifier: Apache-2.0
// The one place that takes a built graph through passes, decisions and planning to a program.
#pragma once
#include <cstdint>
#include <map>
#include <optional>
#include <set>
#include <string>

#include "ir/graph.h"
#include "passes/pass_runner.h"
#include "plan/memory_decider.h"
#include "plan/plan.h"
#include "plan/prices.h"
#include "runtime/program.h"
#include "spec/device_spec.h"
#include "spec/training.h"

namespace anabatic::lower {

using spec::OptimizerOptions;
using spec::Precision;

// Whether a budget may put the optimizer's state on disk, beside what disk.optimizer_state says.
struct DiskChoice {
  bool is_allowed = false;
  std::string refusal{};               // else, why not: for the BudgetError
  bool may_take_masters = false;       // the lower halves of parameters too
  bool may_take_parameters = false;    // and what the model reads of them
  std::int64_t free_bytes = 0;         // of the disk
  std::int64_t beside_bytes = 0;       // what the budget must hold for it beside the program's own
  std::int64_t num_micro_batches = 1;  // of a step, to weigh waits against what is made again
};

struct CompileOptions {
  Precision precision = Precision::kFp32;
  bool training = true;          // false: forward only
  OptimizerOptions optimizer{};  // used when training and with_update
  // Weights stay packed for input-gradients too; without, the backward packs them anew.
  bool pack_transposed = true;
  // Of a step; 0: not known. With one, gradients share the frame's bytes; with more, the gradient's
  // norm has a pass of its own.
  std::int64_t micro_batches = 0;
  bool with_update = true;  // false: gradients only (the `gradients` verb); gradient states stay
                            // readable as outputs
  std::set<std::string, std::less<>>
      disabled_passes{};  // optional passes only; InvalidArgument naming an unknown or required one
  bool trivial_planners = false;
  plan::DiskOptions disk{};      // used when training and with_update
  DiskChoice disk_choice{};      // likewise, under a budget
  std::string only_kernels{};    // "ref": only rows whose name starts with it; empty: all
  std::string dump_directory{};  // empty: none; else every artifact is written there: the graph
                                 // after each pass, plan.txt, program.txt
  passes::StateLayouts state_layouts{};  // of states that other programs hold already
  passes::StateNames states_on_disk{};   // of these; for programs that do not train
  plan::MemoryOptions memory{};          // of training programs
  // Of a plan for almost this budget: the places that its states have are taken where they keep
  // this one, too.
  std::optional<spec::Decisions> near{};
  plan::OpEfficiency efficiency = plan::default_efficiency();  // by which choices are priced
  bool explain_dispatch = false;                               // prints each rejection to the log
};

// A step's first micro-batch, where it keeps more than the others (spec::Decisions::first).
struct FirstMicroBatch {
  ir::Graph graph;
  plan::Plan plan;  // its update is not run
};

struct Compiled {
  ir::Graph graph;
  plan::Plan plan;
  runtime::Program program;
  std::vector<passes::PassReport> passes;
  plan::MemoryDecision memory{};
  std::optional<FirstMicroBatch> first{};
};

// Of a step of so many micro-batches (plan::price_step).
plan::StepPrice price_step(const Compiled& compiled, const spec::DeviceSpec& device,
                           const plan::OpEfficiency& efficiency, std::int64_t num_micro_batches);
// By segment (plan::price_segments).
std::map<std::string, double> price_segments(const Compiled& compiled,
                                             const spec::DeviceSpec& device,
                                             const plan::OpEfficiency& efficiency,
                                             std::int64_t num_micro_batches);

// `forward` holds the forward graph of one micro-batch, with its objective when training.
// plan::BudgetError when options.memory.budget_bytes cannot be kept.
Compiled compile(ir::Graph forward, const CompileOptions& options, const spec::DeviceSpec& device);

}  // namespace anabatic::lower
