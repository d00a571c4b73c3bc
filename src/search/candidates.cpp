// SPDX-License-Identifier: Apache-2.0
#include "search/candidates.h"

#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "base/log.h"
#include "passes/norms/fuse_norm_linear.h"
#include "passes/pipelines.h"
#include "plan/hints.h"
#include "plan/offload.h"
#include "plan/prices.h"
#include "search/choose_memory.h"
#include "spec/product_prologue.h"

namespace anabatic::search {
namespace {

void log_lines(const std::vector<std::string>& lines) {
  for (const std::string& line : lines) log_line(Severity::kInfo, line);
}

void explain(const Candidate& candidate, const ir::Graph& graph) {
  std::vector<std::string> explanation;
  candidate.plan_of(graph, &explanation);
  log_lines(explanation);
}

}  // namespace

passes::StateNames norms_in_products(const ir::Graph& graph) {
  passes::StateNames names;
  for (const ir::Node& node : graph.nodes) {
    if (ir::product_form(node) != nullptr) {
      if (spec::drops_x(node.attributes))
        names.insert(spec::get_string(node.attributes, spec::kDropoutSite));
    } else if (node.attributes.contains(spec::kNorm)) {
      if (const Name name = graph.value(node.outputs.back()).name; name != Name{})
        names.emplace(text(name));
    }
  }
  return names;
}

Candidates::Candidates(ir::Graph forward, const CompileOptions& options,
                       const spec::DeviceSpec& device)
    : forward_(std::move(forward)), options_(options), device_(device) {}

Outcome Candidates::plan(const StatePlaces& places) {
  const Candidate candidate(options_, device_, places, forward_);
  const PlannedStep& shared = with_passes(candidate);
  PlannedStep whole = shared;
  whole.plan = candidate.plan_of(whole.graph);
  Outcome result = options_.training && options_.memory.asks() ? choose_memory(candidate, whole)
                                                               : Outcome(std::move(whole));
  if (!result) return result;
  PlannedStep& step = *result;
  spec::Decisions& decisions = step.memory.decisions;
  decisions.pack_transposed = places.pack_transposed;
  decisions.keep_packings = places.keep_packings;
  decisions.norms_in_products = norms_in_products(shared.graph);
  decisions.state_on_disk = !step.plan.windows.empty();
  decisions.masters_on_disk = decisions.state_on_disk && places.masters;
  decisions.parameters_on_disk = decisions.state_on_disk && places.parameters;
  if (decisions.parameters_on_disk) decisions.resident_parameters = places.resident_parameters;
  decisions.num_windows = places.on_disk ? places.num_windows : 0;
  decisions.resident_bytes = places.resident_bytes;
  decisions.offloads = plan::offload_spans(step.graph, step.plan);
  if (has_update(options_))
    plan::require_obeyed(step.graph, step.plan, options_.disk, options_.memory.offload.is_allowed);
  price_packings(shared.graph, step);
  if (options_.explain_dispatch) explain(candidate, step.graph);
  return result;
}

const ir::Graph& Candidates::graph_of(const StatePlaces& places) {
  return with_passes(Candidate(options_, device_, places, forward_)).graph;
}

plan::Plan Candidates::plan_of(const StatePlaces& places) {
  const Candidate candidate(options_, device_, places, forward_);
  return candidate.plan_of(with_passes(candidate).graph);
}

bool Candidates::leaves_norms(const StatePlaces& places) {
  if (places.norms_in_products || places.only_norms ||
      options_.disabled_passes.contains(passes::kFuseNormLinear.name))
    return false;
  const Candidate candidate(options_, device_, places, forward_);
  ir::Graph graph = with_passes(candidate).graph;
  passes::PassContext context = candidate.context(nullptr);
  context.options.norms_in_products = true;
  return passes::kFuseNormLinear.run(graph, context);
}

const PlannedStep& Candidates::with_passes(const Candidate& candidate) {
  const StatePlaces& places = candidate.places();
  const auto key_of = [&](bool norms, const std::optional<passes::StateNames>& only_norms) {
    return std::tuple(places.pack_transposed, places.keep_packings, norms, only_norms,
                      places.on_disk, places.parameters, places.resident_parameters);
  };
  if (places.only_norms)  // often those of a candidate that did not name them
    for (const bool norms : {false, true})
      if (const auto same = behind_passes_.find(key_of(norms, std::nullopt));
          same != behind_passes_.end() &&
          norms_in_products(same->second.graph) == places.only_norms)
        return same->second;
  const auto [found, is_new] =
      behind_passes_.try_emplace(key_of(places.norms_in_products, places.only_norms));
  PlannedStep& result = found->second;
  if (is_new) {
    std::vector<std::string> explanation;
    passes::PassContext context = candidate.context(nullptr);
    if (options_.explain_dispatch) context.options.explanation = &explanation;
    result.graph = forward_;
    result.passes = passes::run_passes(
        result.graph,
        options_.training ? passes::training_pipeline() : passes::inference_pipeline(), context,
        {.disabled = options_.disabled_passes,
         .dump_directory = options_.dump_directory,
         .checks = options_.checks_passes});
    if (!options_.checks_passes) ir::verify(result.graph);
    log_lines(explanation);
  }
  return result;
}

// `whole`: what calls that are cut pack themselves still has nodes there.
void Candidates::price_packings(const ir::Graph& whole, PlannedStep& step) const {
  const spec::DeviceSpec priced = plan::with_peaks(device_);
  plan::MemoryDecision& memory = step.memory;
  for (const ir::Node& node : whole.nodes) {
    const bool is_of_step =
        node.tag.phase == ir::Phase::kForward || node.tag.phase == ir::Phase::kRecompute;
    if (node.op->name != "pack" || !is_of_step) continue;
    memory.packings_bytes += whole.value(node.outputs[0]).type.num_bytes();
    memory.packing_seconds += plan::predicted_seconds(whole, node, priced, options_.efficiency);
  }
  memory.added_seconds += memory.packing_seconds;
  if (step.first) memory.first_added_seconds += memory.packing_seconds;
}

}  // namespace anabatic::search
