// SPDX-License-Identifier: Apache-2.0
// A graph after its passes and decisions, and its plan: the input of lowering.
#pragma once
#include <cstdint>
#include <optional>
#include <vector>

#include "ir/graph.h"
#include "passes/pass_runner.h"
#include "plan/memory_decider.h"
#include "plan/outcome.h"
#include "plan/plan.h"
#include "plan/prices.h"
#include "spec/device_spec.h"

namespace anabatic::search {

// A step's first micro-batch, if it keeps more than the others (spec::Decisions::first).
struct FirstMicroBatch {
  ir::Graph graph;
  plan::Plan plan;  // its update is not run
};

struct PlannedStep {
  ir::Graph graph;
  plan::Plan plan;
  std::vector<passes::PassReport> passes;
  plan::MemoryDecision memory{};
  std::optional<FirstMicroBatch> first{};
};

using Outcome = plan::Outcome<PlannedStep>;

// The price of a step of so many micro-batches (plan::price_step).
plan::StepPrice price_step(const PlannedStep& step, const spec::DeviceSpec& device,
                           const plan::OpEfficiency& efficiency, std::int64_t num_micro_batches);
// The same by segment (plan::price_segments).
std::map<std::string, double> price_segments(const PlannedStep& step,
                                             const spec::DeviceSpec& device,
                                             const plan::OpEfficiency& efficiency,
                                             std::int64_t num_micro_batches);

}  // namespace anabatic::search
