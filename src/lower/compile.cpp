// SPDX-License-Identifier: Apache-2.0
#include "lower/compile.h"

#include <fmt/core.h>

#include <algorithm>
#include <filesystem>
#include <optional>
#include <utility>
#include <vector>

#include "base/error.h"
#include "base/text.h"
#include "lower/attempts.h"
#include "plan/largest_consumers.h"
#include "plan/offload.h"
#include "plan/prices.h"

namespace anabatic::lower {
namespace {

// Plans that look whether what is left then holds some moments after all.
constexpr int kMostReturns = 4;
// Plans that look how many parameters may stay in memory, and how many windows pay.
constexpr int kMostShares = 4, kMostDoublings = 8;
// More windows are taken while a step becomes this much shorter by twice as many.
constexpr double kWorthwhile = 0.995;
// Nodes that may be planned for either, all tries together: a large model's plan takes seconds.
constexpr int kPlannedNodes = 8000;

int num_tries(const ir::Graph& graph, int most) {
  return std::clamp(kPlannedNodes / static_cast<int>(graph.nodes.size()), 1, most);
}

// The disk has less room than the states need that were to go there.
struct DiskSpaceError : plan::BudgetError {
  using plan::BudgetError::BudgetError;
};

StatePlaces places_of(const spec::Decisions& decisions) {
  return {.pack_transposed = decisions.pack_transposed,
          .on_disk = decisions.state_on_disk,
          .masters = decisions.masters_on_disk,
          .parameters = decisions.parameters_on_disk,
          .resident_parameters = decisions.resident_parameters,
          .num_windows = decisions.num_windows,
          .resident_bytes = decisions.resident_bytes};
}

// Among the places that states may have, those whose step keeps the budget and takes the least.
class Search {
 public:
  Search(ir::Graph forward, const CompileOptions& options, const spec::DeviceSpec& device)
      : options_(options), attempts_(std::move(forward), options, device) {}

  // Where a budget is given and the choice is free: with the optimizer's state in memory, then on
  // disk, whichever costs a step less.
  Compiled run() {
    if (options_.training && options_.memory.replay) return replayed();
    if (options_.near) try {
        return attempt(places_of(*options_.near));
      } catch (const plan::BudgetError&) {  // other places may do
      }
    StatePlaces places = as_asked();
    if (!has_update(options_) || options_.memory.budget_bytes == 0) return run_packings(places);
    if (places.on_disk) return run_on_disk(places);
    if (!options_.disk_choice.is_allowed) return run_packings(places);
    std::optional<Compiled> resident;
    try {
      resident = run_packings(places);
      if (!may_pay_on_disk(*resident)) return std::move(*resident);
    } catch (const plan::BudgetError&) {  // the second attempt says so too, of what it needs
    }
    places.on_disk = true;
    places.masters = options_.disk.masters;
    places.parameters = options_.disk.parameters;
    try {
      Compiled on_disk = run_on_disk(places);
      if (!resident || step_seconds(on_disk) < step_seconds(*resident)) return on_disk;
    } catch (const plan::BudgetError&) {
      if (!resident) throw;
    }
    return std::move(*resident);
  }

 private:
  StatePlaces as_asked() const {
    const bool on_disk = options_.disk.optimizer_state && has_update(options_);
    return {.pack_transposed = options_.pack_transposed,
            .on_disk = on_disk,
            .masters = on_disk && options_.disk.masters,
            .parameters = on_disk && options_.disk.parameters,
            .num_windows = options_.disk.num_windows};
  }

  Compiled replayed() {
    StatePlaces places = places_of(*options_.memory.replay);
    require_parameters(places.resident_parameters);
    if (!places.on_disk || !has_update(options_))
      places = {.pack_transposed = places.pack_transposed};
    return attempt(places);
  }

  void require_parameters(const passes::StateNames& names) const {
    std::vector<std::string> known;
    for (const ir::State& state : attempts_.forward().states)
      if (state.kind == ir::StateKind::kParameter) known.emplace_back(text(state.name));
    for (const std::string& name : names) {
      if (std::find(known.begin(), known.end(), name) != known.end()) continue;
      const auto nearest = nearest_word(name, known);
      throw InvalidArgument(fmt::format(
          "[memory] expected a saved plan whose resident_parameters this model has, got {}{}", name,
          nearest ? fmt::format("; did you mean {}?", *nearest) : ""));
    }
  }

  // The moments; and where they may go too and the budget is not kept otherwise, the lower halves
  // of parameters, then what the model reads of them: a quarter more for the disk to move, and half
  // as much again, cost more than making values again.
  Compiled run_on_disk(StatePlaces places) {
    for (;;) {
      try {
        return run_windows(places);
      } catch (const DiskSpaceError&) {
        throw;
      } catch (const plan::BudgetError&) {
        if (!take_more_to_disk(places)) throw;
      }
    }
  }

  // False where nothing more may go.
  bool take_more_to_disk(StatePlaces& places) const {
    const DiskChoice& choice = options_.disk_choice;
    if (choice.may_take_masters && !places.masters) return places.masters = true;
    if (choice.may_take_parameters && !places.parameters) return places.parameters = true;
    return false;
  }

  // With as many windows as pay, where their number is free.
  Compiled run_windows(const StatePlaces& places) {
    require_disk_space_of_optimizer(places);
    Compiled on_disk = run_packings(places);
    if (options_.disk_choice.may_take_parameters) on_disk = with_parameters(std::move(on_disk));
    if (options_.disk.optimizer_state) return on_disk;
    require_disk_space(on_disk.graph, on_disk.plan);
    Compiled more_windows = with_more_windows(on_disk);
    const bool has_more =
        more_windows.memory.decisions.num_windows != on_disk.memory.decisions.num_windows;
    Compiled few_windows = with_moments(std::move(on_disk));
    if (!has_more) return few_windows;
    more_windows = with_moments(std::move(more_windows));
    return step_seconds(few_windows) < step_seconds(more_windows) ? std::move(few_windows)
                                                                  : std::move(more_windows);
  }

  // Ahead of any choice, which may take seconds.
  void require_disk_space_of_optimizer(StatePlaces places) {
    if (options_.disk.optimizer_state) return;
    places.parameters = false;
    require_disk_space(attempts_.graph_of(places), attempts_.plan_of(places));
  }

  void require_disk_space(const ir::Graph& graph, const plan::Plan& plan) const {
    if (plan.disk_bytes <= options_.disk_choice.free_bytes) return;
    throw DiskSpaceError(
        fmt::format("[memory] expected {} free for the optimizer's state in "
                    "memory.swap_directory, got {}; memory.budget {} does not hold it in memory",
                    format_bytes(plan.disk_bytes), format_bytes(options_.disk_choice.free_bytes),
                    format_bytes(options_.memory.budget_bytes)),
        0, plan::largest_consumers(graph, plan));
  }

  // Where a budget is given: with both packings of the weights, then with one, whichever costs
  // less.
  Compiled run_packings(StatePlaces places) {
    const bool may_pack_again =
        options_.training && options_.memory.budget_bytes > 0 && options_.pack_transposed;
    if (may_pack_again && !packs_transposed(places)) places.pack_transposed = false;
    if (!may_pack_again || !places.pack_transposed) return attempt(places);
    std::optional<Compiled> both;
    try {
      both = attempt(places);
      if (both->memory.choices.empty()) return std::move(*both);
    } catch (const plan::BudgetError&) {  // the second attempt says so too, of what it needs
    }
    places.pack_transposed = false;
    try {
      Compiled one = attempt(places);
      if (!both || step_seconds(one) < step_seconds(*both)) return one;
    } catch (const plan::BudgetError&) {
      if (!both) throw;
    }
    return std::move(*both);
  }

  // Whether any weight has a second packing: those on disk have none.
  bool packs_transposed(const StatePlaces& places) {
    return plan::has_second_packings(attempts_.graph_of(places));
  }

  Compiled attempt(const StatePlaces& places) { return attempts_.compile(places); }
  double step_seconds(const Compiled& compiled) const { return attempts_.step_seconds(compiled); }

  // What the budget leaves goes to more windows, as long as they shorten the step.
  Compiled with_more_windows(Compiled best) {
    StatePlaces places = places_of(best.memory.decisions);
    const int most_tries = num_tries(best.graph, kMostDoublings);
    int num_idle = 0;
    for (int i = 0; i < most_tries && num_idle < 2; ++i) {
      places.num_windows *= 2;
      places.pack_transposed = best.memory.decisions.pack_transposed;
      bool is_shorter = shorten(places, best);
      if (!is_shorter && options_.pack_transposed && packs_transposed(places)) {
        places.pack_transposed = !places.pack_transposed;
        is_shorter = shorten(places, best);
      }
      num_idle = is_shorter ? 0 : num_idle + 1;  // some windows' places are free in any case
    }
    return best;
  }

  // Takes the attempt where it is worthwhile, and the disk has room.
  bool shorten(const StatePlaces& places, Compiled& best) {
    try {
      Compiled next = attempt(places);
      if (step_seconds(next) > kWorthwhile * step_seconds(best)) return false;
      if (!options_.disk.optimizer_state) require_disk_space(next.graph, next.plan);
      best = std::move(next);
      return true;
    } catch (const plan::BudgetError&) {
      return false;
    }
  }

  // Where some parameters in memory, those that move most, and the others on disk shorten the step.
  Compiled with_parameters(Compiled best) {
    StatePlaces places = places_of(best.memory.decisions);
    if (!places.on_disk) return best;  // there was nothing large enough
    const bool holds_all = !std::exchange(places.parameters, true);
    const std::vector<plan::ParameterOnDisk> parameters =
        plan::reloaded_parameters(attempts_.graph_of(places));
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
    // Those that hold too many take no time to speak of.
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

  // What the budget still leaves holds some of the moments after all.
  Compiled with_moments(Compiled best) {
    StatePlaces places = places_of(best.memory.decisions);
    const std::int64_t budget = budget_bytes(options_, places);
    for (int tries = 0; tries < kMostReturns; ++tries) {
      const std::int64_t room = budget - best.plan.peak_bytes();
      if (room < options_.disk.slice_bytes) break;
      places.resident_bytes = best.memory.decisions.resident_bytes + room;
      try {
        Compiled next = attempt(places);
        if (next.plan.windows.empty() || step_seconds(next) >= step_seconds(best)) break;
        best = std::move(next);
      } catch (const plan::BudgetError&) {
        break;
      }
    }
    return best;
  }

  // Whether a step that waits for the disk could be shorter than one that makes values again: it
  // takes as long as the disk is busy.
  bool may_pay_on_disk(const Compiled& resident) const {
    const double added =
        resident.memory.added_seconds *
        static_cast<double>(options_.disk_choice.num_micro_batches - resident.first.has_value());
    if (added <= 0) return false;
    double moment_bytes = 0;
    for (const ir::State& state : resident.graph.states)
      if (const TensorType& type = resident.graph.value(state.before).type;
          state.kind == ir::StateKind::kOptimizer && type.dtype != DType::kUInt16)
        moment_bytes += static_cast<double>(type.num_bytes());
    const plan::DiskSpeed& disk = options_.efficiency.disk;
    return moment_bytes * (1 / disk.read_bytes_per_second + 1 / disk.written_bytes_per_second) <
           step_seconds(resident);
  }

  const CompileOptions& options_;
  Attempts attempts_;
};

}  // namespace

plan::StepPrice price_step(const Compiled& compiled, const spec::DeviceSpec& device,
                           const plan::OpEfficiency& efficiency, std::int64_t num_micro_batches) {
  const auto price = [&](const auto& planned, std::int64_t count) {
    return plan::price_step(planned.graph, planned.plan, device, efficiency, count);
  };
  plan::StepPrice step = price(compiled, num_micro_batches);
  if (!compiled.first || num_micro_batches < 2) return step;
  const plan::StepPrice first = price(*compiled.first, 1), other = price(compiled, 1);
  for (const auto part :
       {&plan::StepPrice::forward_seconds, &plan::StepPrice::backward_seconds,
        &plan::StepPrice::disk_seconds, &plan::StepPrice::seconds, &plan::StepPrice::flops})
    step.*part += first.*part - other.*part;
  step.seconds -= first.update_seconds - other.update_seconds;
  return step;
}

std::map<std::string, double> price_segments(const Compiled& compiled,
                                             const spec::DeviceSpec& device,
                                             const plan::OpEfficiency& efficiency,
                                             std::int64_t num_micro_batches) {
  std::map<std::string, double> step = plan::price_segments(compiled.graph, compiled.plan, device,
                                                            efficiency, num_micro_batches, true);
  if (!compiled.first || num_micro_batches < 2) return step;
  const auto one = [&](const auto& planned) {
    return plan::price_segments(planned.graph, planned.plan, device, efficiency, 1, false);
  };
  for (const auto& [segment, seconds] : one(*compiled.first)) step[segment] += seconds;
  for (const auto& [segment, seconds] : one(compiled)) step[segment] -= seconds;
  return step;
}

Compiled compile(ir::Graph forward, const CompileOptions& options, const spec::DeviceSpec& device) {
  Compiled result = Search(std::move(forward), options, device).run();
  if (!options.dump_directory.empty()) {
    const std::filesystem::path directory(options.dump_directory);
    if (!result.memory.choices.empty())
      write_file_atomically(directory / fmt::format("{:02}_recompute.ir", result.passes.size()),
                            ir::print(result.graph));
    write_file_atomically(directory / "plan.txt", plan::print(result.graph, result.plan));
    if (result.first)
      write_file_atomically(directory / "first_plan.txt",
                            plan::print(result.first->graph, result.first->plan));
    write_file_atomically(directory / "program.txt", runtime::print(result.program));
  }
  return result;
}

}  // namespace anabatic::lower
