// SPDX-License-Identifier: Apache-2.0
#include "search/candidate.h"

#include <algorithm>
#include <map>

#include "base/text.h"
#include "ops/table.h"
#include "passes/pipelines.h"
#include "plan/hints.h"
#include "plan/largest_consumers.h"

namespace anabatic::search {
namespace {

passes::StateNames parameters_on_disk(const CompileOptions& options, const StatePlaces& places,
                                      const ir::Graph& forward) {
  if (!options.training) return options.states_on_disk;
  passes::StateNames result;
  if (!places.parameters) return result;
  const std::map<ir::ValueId, plan::Experts> experts = plan::experts_of_states(forward);
  for (const ir::State& state : forward.states)
    if (state.kind() == ir::StateKind::kParameter && state.is_trainable &&
        forward.value(state.before).type.num_bytes() >= options.disk.min_parameter_bytes &&
        !places.resident_parameters.contains(text(state.name)) &&
        plan::may_go_to_disk(options.disk, text(state.name), experts.at(state.before)))
      result.insert(std::string(text(state.name)));
  return result;
}

}  // namespace

bool has_update(const CompileOptions& options) { return options.training && options.with_update; }

std::int64_t budget_bytes(const CompileOptions& options, const StatePlaces& places) {
  const std::int64_t budget = options.memory.budget_bytes;
  const bool is_chosen = places.on_disk && !options.disk.optimizer_state;
  if (budget == 0 || !is_chosen) return budget;
  return std::max<std::int64_t>(budget - options.disk_choice.beside_bytes, 1);
}

Candidate::Candidate(const CompileOptions& options, const spec::DeviceSpec& device,
                     const StatePlaces& places, const ir::Graph& forward)
    : options_(options),
      device_(device),
      places_(places),
      parameters_on_disk_(parameters_on_disk(options, places, forward)),
      expert_cuts_(plan::expert_cuts(forward, options.disk)),
      priced_(plan::with_peaks(device)) {}

double Candidate::seconds_of(const ir::Graph& graph, const ir::Node& node) const {
  return plan::predicted_seconds(graph, node, priced_, options_.efficiency);
}

passes::PassContext Candidate::context(const spec::Decisions* decisions) const {
  return {.options = {.precision = options_.precision,
                      .products = options_.products,
                      .quantization = options_.quantization,
                      .sparsity = options_.sparsity,
                      .optimizer = options_.optimizer,
                      .frozen_format = options_.frozen_format,
                      .pack_transposed = places_.pack_transposed,
                      .keep_packings = places_.keep_packings || !options_.training,
                      .with_update = options_.with_update,
                      .norms_in_products = places_.norms_in_products,
                      .only_norms = places_.only_norms ? &*places_.only_norms : nullptr,
                      .micro_batches = options_.micro_batches,
                      .leaves = options_.leaves,
                      .slice_bytes = places_.on_disk ? options_.disk.slice_bytes : 0,
                      .expert_cuts = &expert_cuts_,
                      .held_states = &options_.held_states,
                      .streams_weights = options_.streams_weights && !options_.training,
                      .on_disk = &parameters_on_disk_,
                      .decisions = decisions,
                      .mesh = options_.mesh,
                      .rank = options_.rank,
                      .expert_capacity = options_.expert_capacity,
                      .shards_optimizer = options_.shards_optimizer},
          .find_op = options_.find_op,
          .seconds = decltype(passes::PassContext::seconds)::bind<&Candidate::seconds_of>(*this)};
}

plan::Plan Candidate::plan_of(const ir::Graph& graph, std::vector<std::string>* explanation) const {
  plan::DiskOptions disk = options_.disk;
  disk.optimizer_state = places_.on_disk;
  disk.masters = places_.masters;
  disk.num_windows = places_.num_windows;
  disk.resident_bytes = places_.resident_bytes;
  return plan::make_plan(
      graph, device_,
      {.trivial = options_.trivial_planners,
       .places = options_.micro_batches == 1 && options_.with_update
                     ? spec::Places{spec::Place::kOnly}
                     : spec::kEveryPlace,
       .only_kernels = options_.only_kernels,
       .find_kernels = options_.find_kernels,
       .disk = disk,
       .efficiency = &options_.efficiency,
       .offloads = options_.memory.replay ? options_.memory.replay->offloads : spec::OffloadSpans{},
       .overlaps_exchanges = options_.overlaps_exchanges,
       .explanation = explanation});
}

bool Candidate::has_another_way(const ir::Graph& graph) const {
  const DiskChoice& choice = options_.disk_choice;
  if (options_.memory.replay) return false;
  if (places_.pack_transposed || places_.leaves_norms || !places_.resident_parameters.empty())
    return true;
  if (places_.keep_packings && plan::has_packings(graph)) return true;
  if (!places_.on_disk) return choice.is_allowed;
  return (choice.may_take_masters && !places_.masters) ||
         (choice.may_take_parameters && !places_.parameters);
}

PlannedStep Candidate::step_of(plan::MemoryDecision decision, const PlannedStep& whole) const {
  PlannedStep step{
      .graph = whole.graph, .plan = {}, .passes = whole.passes, .memory = std::move(decision)};
  if (step.memory.choices.empty()) {
    step.plan = whole.plan;
    return step;
  }
  for (passes::PassReport& report :
       passes::run_passes(step.graph, passes::decided_pipeline(), context(&step.memory.decisions),
                          {.disabled = options_.disabled_passes, .checks = false}))
    *std::find_if(step.passes.begin(), step.passes.end(), [&](const passes::PassReport& before) {
      return before.name == report.name;
    }) = std::move(report);
  step.plan = plan_of(step.graph);
  return step;
}

}  // namespace anabatic::search
