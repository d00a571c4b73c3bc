// SPDX-License-Identifier: Apache-2.0
#include "search/search.h"

#include <fmt/core.h>

#include <algorithm>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/error.h"
#include "base/text.h"
#include "plan/largest_consumers.h"
#include "plan/offload.h"
#include "plan/prices.h"
#include "search/candidates.h"

namespace anabatic::search {
namespace {

// Plans that look whether what is left then holds some moments after all.
constexpr int kMostReturnedMoments = 4;
// Plans that look how many parameters may stay in memory, and how many windows pay.
constexpr int kMostShares = 4, kMostDoublings = 8;
// More windows are taken while a step becomes this much shorter by twice as many.
constexpr double kWorthwhile = 0.995;
// Nodes that may be planned for either, all tries together: a large model's plan takes seconds.
constexpr int kPlannedNodes = 8000;

int num_tries(const ir::Graph& graph, int most) {
  return std::clamp(kPlannedNodes / static_cast<int>(graph.nodes.size()), 1, most);
}

StatePlaces places_of(const spec::Decisions& decisions) {
  return {.pack_transposed = decisions.pack_transposed,
          .keep_packings = decisions.keep_packings,
          .only_norms = decisions.norms_in_products,
          .on_disk = decisions.state_on_disk,
          .masters = decisions.masters_on_disk,
          .parameters = decisions.parameters_on_disk,
          .resident_parameters = decisions.resident_parameters,
          .num_windows = decisions.num_windows,
          .resident_bytes = decisions.resident_bytes};
}

// Searches the places that states may have for the step that fits the budget and takes least time.
class Search {
 public:
  Search(ir::Graph forward, const CompileOptions& options, const spec::DeviceSpec& device)
      : options_(options),
        priced_(plan::with_peaks(device)),
        candidates_(std::move(forward), options, device) {}

  Outcome run() {
    if (options_.training && options_.memory.replay) return replayed();
    if (options_.warm_start)
      if (Outcome step = candidates_.plan(places_of(*options_.warm_start))) return step;
    const StatePlaces places = as_asked();
    Outcome best = step_at(places);
    std::optional<StatePlaces> next = next_tier(places, best);
    while (next) {
      Outcome step = step_at(*next);
      next = next_tier(*next, step);
      best = shorter(std::move(best), std::move(step));
    }
    return best;
  }

 private:
  StatePlaces as_asked() const {
    const bool on_disk = options_.disk.optimizer_state && has_update(options_);
    return {.pack_transposed = options_.pack_transposed && options_.keep_packings,
            .keep_packings = options_.keep_packings,
            .norms_in_products = options_.norms_in_products,
            .on_disk = on_disk,
            .masters = on_disk && options_.disk.masters,
            .parameters = on_disk && options_.disk.parameters,
            .num_windows = options_.disk.num_windows};
  }

  Outcome replayed() {
    StatePlaces places = places_of(*options_.memory.replay);
    require_parameters(places.resident_parameters);
    if (!places.on_disk || !has_update(options_))
      places = {.pack_transposed = places.pack_transposed,
                .keep_packings = places.keep_packings,
                .only_norms = std::move(places.only_norms)};
    if (places.only_norms) require_norms(places);
    return candidates_.plan(places);
  }

  void require_parameters(const passes::StateNames& names) const {
    std::vector<std::string> known;
    for (const ir::State& state : candidates_.forward().states)
      if (state.kind() == ir::StateKind::kParameter) known.emplace_back(text(state.name));
    require_known("resident_parameters", "has", names, known);
  }

  void require_norms(const StatePlaces& places) {
    const passes::StateNames taken = norms_in_products(candidates_.graph_of(places));
    if (taken == places.only_norms) return;
    StatePlaces all = places;
    all.only_norms.reset();
    all.norms_in_products = true;
    const passes::StateNames known = norms_in_products(candidates_.graph_of(all));
    require_known("norms_in_products", "can apply", *places.only_norms,
                  {known.begin(), known.end()});
  }

  static void require_known(std::string_view decision, std::string_view verb,
                            const passes::StateNames& names,
                            const std::vector<std::string>& known) {
    for (const std::string& name : names) {
      if (std::find(known.begin(), known.end(), name) != known.end()) continue;
      const auto nearest = nearest_word(name, known);
      throw InvalidArgument(
          fmt::format("[memory] expected a saved plan whose {} this model {}, got {}{}", decision,
                      verb, name, nearest ? fmt::format("; did you mean {}?", *nearest) : ""));
    }
  }

  // What a budget may send to disk next, by the outcome for these places: first the moments. If the
  // budget is still too small, the lower 16 bits of parameters, then the parameters that the model
  // reads. They give the disk a quarter more to move, and half as much again, which costs more than
  // recomputation.
  std::optional<StatePlaces> next_tier(StatePlaces places, const Outcome& outcome) const {
    const DiskChoice& choice = options_.disk_choice;
    if (!has_budget()) return std::nullopt;
    if (!places.on_disk) {
      if (!choice.is_allowed || (outcome && !may_pay_on_disk(*outcome))) return std::nullopt;
      places.on_disk = true;
      places.masters = options_.disk.masters;
      places.parameters = options_.disk.parameters;
      return places;
    }
    if (outcome || outcome.refusal().lacks_disk) return std::nullopt;
    if (choice.may_take_masters && !places.masters)
      places.masters = true;
    else if (choice.may_take_parameters && !places.parameters)
      places.parameters = true;
    else
      return std::nullopt;
    return places;
  }

  Outcome step_at(const StatePlaces& places) {
    return places.on_disk && has_budget() ? step_on_disk(places) : best_step(places);
  }

  // With as many windows as pay, where their number is free.
  Outcome step_on_disk(const StatePlaces& places) {
    if (auto refusal = refusal_of_moments(places)) return *std::move(refusal);
    Outcome found = best_step(places);
    if (!found) return found;
    PlannedStep few_windows = *std::move(found);
    if (options_.disk_choice.may_take_parameters)
      few_windows = with_parameters(std::move(few_windows));
    if (options_.disk.optimizer_state) return few_windows;
    if (auto refusal = refusal_of_disk(few_windows.graph, few_windows.plan))
      return *std::move(refusal);
    PlannedStep more_windows = with_more_windows(few_windows);
    const bool has_more =
        more_windows.memory.decisions.num_windows != few_windows.memory.decisions.num_windows;
    few_windows = with_moments(std::move(few_windows));
    if (!has_more) return few_windows;
    return shorter(with_moments(std::move(more_windows)), std::move(few_windows));
  }

  // Checked before any choice, which may take seconds: what is to go to disk in any case.
  std::optional<plan::Refusal> refusal_of_moments(StatePlaces places) {
    if (options_.disk.optimizer_state) return std::nullopt;
    places.parameters = false;
    return refusal_of_disk(candidates_.graph_of(places), candidates_.plan_of(places));
  }

  // Where the disk has less room than the plan's states need.
  std::optional<plan::Refusal> refusal_of_disk(const ir::Graph& graph,
                                               const plan::Plan& plan) const {
    if (plan.disk_bytes <= options_.disk_choice.free_bytes) return std::nullopt;
    return plan::Refusal{
        .reason = fmt::format(
            "[memory] expected {} free for the optimizer's state in memory.swap_directory, got {}; "
            "it does not fit in memory within memory.budget {}",
            format_bytes(plan.disk_bytes), format_bytes(options_.disk_choice.free_bytes),
            format_bytes(options_.memory.budget_bytes)),
        .consumers = plan::largest_consumers(graph, plan),
        .lacks_disk = true};
  }

  // Where a budget is given and anything has to go for it: also with every norm in products.
  Outcome best_step(StatePlaces places) {
    places.leaves_norms =
        options_.training && options_.memory.budget_bytes > 0 && candidates_.leaves_norms(places);
    Outcome best = best_packing(places);
    if (!places.leaves_norms ||
        (best && best->memory.choices.empty() && best->memory.packings_bytes == 0))
      return best;
    if (best) {
      places.pack_transposed = best->memory.decisions.pack_transposed;
      places.keep_packings = best->memory.decisions.keep_packings;
    } else {
      places.pack_transposed = false;
      places.keep_packings =
          places.keep_packings && !plan::has_packings(candidates_.graph_of(places));
    }
    places.norms_in_products = true;
    places.leaves_norms = false;
    return shorter(std::move(best), candidates_.plan(places));
  }

  // Where a budget is given: with both packings of the weights, then with one, then with none. Each
  // is tried where the one before has to leave out something else.
  Outcome best_packing(StatePlaces places) {
    const bool has_budget = options_.training && options_.memory.budget_bytes > 0;
    const auto is_whole = [](const Outcome& step) { return step && step->memory.choices.empty(); };
    if (has_budget && places.pack_transposed && !packs_transposed(places))
      places.pack_transposed = false;
    Outcome best = candidates_.plan(places);
    if (!has_budget || is_whole(best)) return best;
    if (places.pack_transposed) {
      places.pack_transposed = false;
      Outcome one = candidates_.plan(places);
      const bool is_enough = is_whole(one);
      best = shorter(std::move(best), std::move(one));
      if (is_enough) return best;
    }
    if (!places.keep_packings || !plan::has_packings(candidates_.graph_of(places))) return best;
    places.keep_packings = false;
    return shorter(std::move(best), candidates_.plan(places));
  }

  // Whether any weight has a second packing: those on disk have none.
  bool packs_transposed(const StatePlaces& places) {
    return plan::has_second_packings(candidates_.graph_of(places));
  }

  double step_seconds(const PlannedStep& step) const {
    return price_step(step, priced_, options_.efficiency, options_.disk_choice.num_micro_batches)
        .seconds;
  }

  // If neither fits the budget, the second one's refusal: it tries what needs less.
  Outcome shorter(Outcome first, Outcome second) const {
    if (first && (!second || step_seconds(*second) >= step_seconds(*first))) return first;
    return second;
  }

  // Takes the step of these places where it leaves states on disk, takes less than that share of
  // the best one's time, and the disk has room.
  bool shorten(const StatePlaces& places, PlannedStep& best, double share = kWorthwhile) {
    Outcome next = candidates_.plan(places);
    if (!next || next->plan.windows.empty() || step_seconds(*next) >= share * step_seconds(best))
      return false;
    if (!options_.disk.optimizer_state && refusal_of_disk(next->graph, next->plan)) return false;
    best = *std::move(next);
    return true;
  }

  // Uses the rest of the budget for more windows, as long as they shorten the step.
  PlannedStep with_more_windows(PlannedStep best) {
    StatePlaces places = places_of(best.memory.decisions);
    const int most_tries = num_tries(best.graph, kMostDoublings);
    int num_idle = 0;
    for (int i = 0; i < most_tries && num_idle < 2; ++i) {
      places.num_windows *= 2;
      places.pack_transposed = best.memory.decisions.pack_transposed;
      places.keep_packings = best.memory.decisions.keep_packings;
      bool is_shorter = shorten(places, best);
      if (!is_shorter && options_.pack_transposed && places.keep_packings &&
          packs_transposed(places)) {
        places.pack_transposed = !places.pack_transposed;
        is_shorter = shorten(places, best);
      }
      num_idle = is_shorter ? 0 : num_idle + 1;  // some windows' places are free in any case
    }
    return best;
  }

  // Keeps some parameters in memory, those that move most, if that shortens the step.
  PlannedStep with_parameters(PlannedStep best) {
    StatePlaces places = places_of(best.memory.decisions);
    if (!places.on_disk) return best;  // there was nothing large enough
    const bool holds_all = !std::exchange(places.parameters, true);
    const std::vector<plan::ParameterOnDisk> parameters =
        plan::reloaded_parameters(candidates_.graph_of(places));
    if (parameters.empty()) return best;
    if (holds_all) {
      for (const plan::ParameterOnDisk& parameter : parameters)
        if (parameter.num_copies > parameters.back().num_copies)
          places.resident_parameters.insert(parameter.name);
      shorten(places, best);
      return best;
    }
    std::int64_t held = 0, most = 0;
    for (const plan::ParameterOnDisk& parameter : parameters) most += parameter.bytes;
    // Trials with too many in memory take almost no time.
    const int most_held = num_tries(best.graph, kMostShares);
    int num_held = 0;
    for (int tries = 0; tries < kMostShares && num_held < most_held; ++tries) {
      const std::int64_t bytes = (held + most) / 2;
      std::int64_t up_to = 0;
      places.resident_parameters.clear();
      for (const plan::ParameterOnDisk& parameter : parameters)
        if ((up_to += parameter.bytes) <= bytes) places.resident_parameters.insert(parameter.name);
      const bool is_shorter = shorten(places, best);
      num_held += is_shorter;
      (is_shorter ? held : most) = bytes;
    }
    return best;
  }

  // Uses the rest of the budget to keep some of the moments in memory.
  PlannedStep with_moments(PlannedStep best) {
    StatePlaces places = places_of(best.memory.decisions);
    const std::int64_t budget = budget_bytes(options_, places);
    for (int tries = 0; tries < kMostReturnedMoments; ++tries) {
      const std::int64_t room = budget - best.plan.peak_bytes();
      if (room < options_.disk.slice_bytes) break;
      places.resident_bytes = best.memory.decisions.resident_bytes + room;
      if (!shorten(places, best, 1)) break;
    }
    return best;
  }

  // Whether a step that waits for the disk could be shorter than one that recomputes values: it
  // takes as long as the disk is busy.
  bool may_pay_on_disk(const PlannedStep& resident) const {
    const double added =
        resident.memory.added_seconds *
        static_cast<double>(options_.disk_choice.num_micro_batches - resident.first.has_value());
    if (added <= 0) return false;
    double moment_bytes = 0;
    for (const ir::State& state : resident.graph.states)
      if (const TensorType& type = resident.graph.value(state.before).type;
          state.kind() == ir::StateKind::kOptimizer && state.role != ir::StateRole::kLower)
        moment_bytes += static_cast<double>(type.num_bytes());
    const plan::DiskSpeed& disk = options_.efficiency.disk;
    return moment_bytes * (1 / disk.read_bytes_per_second + 1 / disk.written_bytes_per_second) <
           step_seconds(resident);
  }

  bool has_budget() const { return has_update(options_) && options_.memory.budget_bytes > 0; }

  const CompileOptions& options_;
  const spec::DeviceSpec priced_;
  Candidates candidates_;
};

}  // namespace

Outcome find_step(ir::Graph forward, const CompileOptions& options,
                  const spec::DeviceSpec& device) {
  Outcome step = Search(std::move(forward), options, device).run();
  if (step) step->memory.decisions.expert_capacity = options.expert_capacity;
  return step;
}

}  // namespace anabatic::search
