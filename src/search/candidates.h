// SPDX-License-Identifier: Apache-2.0
// Plans candidates for one step one by one, and keeps what several of them share.
#pragma once
#include <map>
#include <optional>
#include <tuple>

#include "ir/graph.h"
#include "plan/plan.h"
#include "search/candidate.h"
#include "search/compile_options.h"
#include "search/planned_step.h"

namespace anabatic::search {

// Norms and dropout that products of the graph apply (passes/norms/fuse_norm_linear.h): the names
// of values that hold statistics, and sites.
passes::StateNames norms_in_products(const ir::Graph& graph);

class Candidates {
 public:
  // Options and device must outlive this.
  Candidates(ir::Graph forward, const CompileOptions& options, const spec::DeviceSpec& device);

  const ir::Graph& forward() const { return forward_; }
  // A refusal if no choice fits the budget.
  Outcome plan(const StatePlaces& places);
  // Before any choice of what to keep.
  const ir::Graph& graph_of(const StatePlaces& places);
  plan::Plan plan_of(const StatePlaces& places);
  // Whether prices left norms apart that products can apply.
  bool leaves_norms(const StatePlaces& places);

 private:
  // The graph after the pipeline, shared by candidates that differ only in the plan.
  const PlannedStep& with_passes(const Candidate& candidate);
  void price_packings(const ir::Graph& whole, PlannedStep& step) const;

  const ir::Graph forward_;
  const CompileOptions& options_;
  const spec::DeviceSpec& device_;
  // By the options that the pipeline of a candidate depends on.
  std::map<std::tuple<bool, bool, bool, std::optional<passes::StateNames>, bool, bool,
                      passes::StateNames>,
           PlannedStep>
      behind_passes_{};
};

}  // namespace anabatic::search
