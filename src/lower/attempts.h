// SPDX-License-Identifier: Apache-2.0
// Programs of one step whose states have different places.
#pragma once
#include <map>
#include <tuple>

#include "ir/graph.h"
#include "lower/attempt.h"
#include "lower/compile.h"
#include "plan/plan.h"

namespace anabatic::lower {

class Attempts {
 public:
  // Options and device must outlive this.
  Attempts(ir::Graph forward, const CompileOptions& options, const spec::DeviceSpec& device);

  const ir::Graph& forward() const { return forward_; }
  // What it takes to compile with these places. plan::BudgetError where no choice keeps the budget.
  Compiled compile(const StatePlaces& places);
  // Before any choice of what is kept.
  const ir::Graph& graph_of(const StatePlaces& places);
  plan::Plan plan_of(const StatePlaces& places);
  double step_seconds(const Compiled& compiled) const;

 private:
  // Behind the pipeline, once for attempts that differ only in the plan.
  const Compiled& with_passes(const Attempt& attempt);
  void price_packings(const ir::Graph& whole, Compiled& result) const;

  const ir::Graph forward_;
  const CompileOptions& options_;
  const spec::DeviceSpec& device_;
  // By what the pipeline of an attempt looks at.
  std::map<std::tuple<bool, bool, bool, passes::StateNames>, Compiled> behind_passes_{};
};

}  // namespace anabatic::lower
