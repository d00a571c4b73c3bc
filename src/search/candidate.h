// SPDX-License-Identifier: Apache-2.0
// One way to lay out a step: where its states are, which packings its weights have. search.h looks
// for the best of them. For each, choose_memory.h decides about activations.
#pragma once
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "ir/graph.h"
#include "passes/pass_runner.h"
#include "plan/memory_decider.h"
#include "plan/plan.h"
#include "search/compile_options.h"
#include "search/planned_step.h"
#include "spec/device_spec.h"

namespace anabatic::search {

struct StatePlaces {
  bool pack_transposed = true;     // keep a second packing of weights for input gradients
  bool keep_packings = true;       // keep any; false goes with pack_transposed false
  bool norms_in_products = false;  // all norms and dropout that products take, at any price
  std::optional<passes::StateNames> only_norms{};  // these instead, by value
  bool leaves_norms = false;  // those that norms_in_products would add are still to be tried
  bool on_disk = false;       // the optimizer's state is on disk; the members below say how
  bool masters = false, parameters = false;  // are on disk too
  passes::StateNames resident_parameters{};  // exceptions to `parameters`
  std::int32_t num_windows = 0;
  std::int64_t resident_bytes = 0;  // of the moments that stay in memory
};

bool has_update(const CompileOptions& options);
// Budget of the step, without the memory that transfers need if states are on disk; 0: none.
std::int64_t budget_bytes(const CompileOptions& options, const StatePlaces& places);

class Candidate {
 public:
  // `forward` names the states; options and device must outlive the candidate.
  Candidate(const CompileOptions& options, const spec::DeviceSpec& device,
            const StatePlaces& places, const ir::Graph& forward);

  const CompileOptions& options() const { return options_; }
  const spec::DeviceSpec& device() const { return device_; }
  const StatePlaces& places() const { return places_; }
  // The context for passes and planners. Null: before any decision.
  passes::PassContext context(const spec::Decisions* decisions) const;
  plan::Plan plan_of(const ir::Graph& graph, std::vector<std::string>* explanation = nullptr) const;
  std::int64_t budget_bytes() const { return search::budget_bytes(options_, places_); }
  // Whether a smaller candidate is still to be tried if this one, of this graph, does not fit the
  // budget. That one then reports what it needs.
  bool has_another_way(const ir::Graph& graph) const;
  // What a node would take (plan/prices.h).
  double seconds_of(const ir::Graph& graph, const ir::Node& node) const;
  // The step of a decision, from `whole`, which keeps everything.
  PlannedStep step_of(plan::MemoryDecision decision, const PlannedStep& whole) const;

 private:
  const CompileOptions& options_;
  const spec::DeviceSpec& device_;
  const StatePlaces places_;
  passes::StateNames parameters_on_disk_{};  // by name, for passes
  passes::ExpertCuts expert_cuts_{};
  const spec::DeviceSpec priced_;  // the device with its peaks
};

}  // namespace anabatic::search
