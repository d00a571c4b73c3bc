// SPDX-License-Identifier: Apache-2.0
#include "lower/attempts.h"

#include <string>
#include <utility>
#include <vector>

#include "base/log.h"
#include "lower/choose_memory.h"
#include "lower/lower.h"
#include "passes/pipelines.h"
#include "plan/hints.h"
#include "plan/offload.h"
#include "plan/prices.h"

namespace anabatic::lower {
namespace {

void explain(const Attempt& attempt, const ir::Graph& graph) {
  std::vector<std::string> explanation;
  attempt.plan_of(graph, &explanation);
  for (const std::string& line : explanation) log_line(Severity::kInfo, line);
}

}  // namespace

Attempts::Attempts(ir::Graph forward, const CompileOptions& options, const spec::DeviceSpec& device)
    : forward_(std::move(forward)), options_(options), device_(device) {}

Compiled Attempts::compile(const StatePlaces& places) {
  const Attempt attempt(options_, device_, places, forward_);
  const Compiled& whole = with_passes(attempt);
  Compiled result = whole;
  result.plan = attempt.plan_of(result.graph);
  if (options_.training && options_.memory.asks()) {
    const plan::Plan whole_plan = result.plan;
    choose_memory(attempt, result);
    ir::verify(result.graph);
    choose_first_memory(attempt, whole.graph, whole_plan, result);
  }
  spec::Decisions& decisions = result.memory.decisions;
  decisions.pack_transposed = places.pack_transposed;
  decisions.state_on_disk = !result.plan.windows.empty();
  decisions.masters_on_disk = decisions.state_on_disk && places.masters;
  decisions.parameters_on_disk = decisions.state_on_disk && places.parameters;
  if (decisions.parameters_on_disk) decisions.resident_parameters = places.resident_parameters;
  decisions.num_windows = places.on_disk ? places.num_windows : 0;
  decisions.resident_bytes = places.resident_bytes;
  decisions.offloads = plan::offload_spans(result.graph, result.plan);
  if (has_update(options_))
    plan::require_obeyed(result.graph, result.plan, options_.disk,
                         options_.memory.offload.is_allowed);
  price_packings(whole.graph, result);
  if (options_.explain_dispatch) explain(attempt, result.graph);
  result.program = lower(result.graph, result.plan, device_);
  verify(result.graph, result.plan, result.program);
  if (result.first) {
    result.program.first = lower_first(result.first->graph, result.first->plan, device_);
    verify_first(result.first->graph, result.first->plan, result.program);
  }
  return result;
}

const ir::Graph& Attempts::graph_of(const StatePlaces& places) {
  return with_passes(Attempt(options_, device_, places, forward_)).graph;
}

plan::Plan Attempts::plan_of(const StatePlaces& places) {
  const Attempt attempt(options_, device_, places, forward_);
  return attempt.plan_of(with_passes(attempt).graph);
}

double Attempts::step_seconds(const Compiled& compiled) const {
  return price_step(compiled, plan::with_peaks(device_), options_.efficiency,
                    options_.disk_choice.num_micro_batches)
      .seconds;
}

const Compiled& Attempts::with_passes(const Attempt& attempt) {
  const StatePlaces& places = attempt.places();
  const auto [found, is_new] = behind_passes_.try_emplace(std::tuple(
      places.pack_transposed, places.on_disk, places.parameters, places.resident_parameters));
  Compiled& result = found->second;
  if (is_new) {
    result.graph = forward_;
    result.passes = passes::run_passes(
        result.graph,
        options_.training ? passes::training_pipeline() : passes::inference_pipeline(),
        attempt.context(nullptr),
        {.disabled = options_.disabled_passes, .dump_directory = options_.dump_directory});
  }
  return result;
}

// `whole`: what calls that are cut pack themselves still has nodes there.
void Attempts::price_packings(const ir::Graph& whole, Compiled& result) const {
  const spec::DeviceSpec priced = plan::with_peaks(device_);
  for (const ir::Node& node : whole.nodes) {
    if (node.op->name != "pack" || node.tag.phase != ir::Phase::kRecompute) continue;
    result.memory.packings_bytes += whole.value(node.outputs[0]).type.num_bytes();
    result.memory.packing_seconds +=
        plan::predicted_seconds(whole, node, priced, options_.efficiency);
  }
  result.memory.added_seconds += result.memory.packing_seconds;
  if (result.first) result.memory.first_added_seconds += result.memory.packing_seconds;
}

}  // namespace anabatic::lower
