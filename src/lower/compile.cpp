// SPDX-License-Identifier: Apache-2.0
#include "lower/compile.h"

#include <algorithm>
#include <map>
#include <optional>
#include <tuple>

#include "base/log.h"
#include "base/text.h"
#include "lower/lower.h"
#include "ops/table.h"
#include "passes/pipelines.h"
#include "passes/recompute.h"
#include "passes/slice_calls.h"
#include "plan/first_micro_batch.h"
#include "plan/hints.h"
#include "plan/offload.h"
#include "plan/prices.h"

namespace anabatic::lower {
namespace {

// A plan may need a little more than the simulated timeline says; its frame is asked for anew, less
// by what it was too large, then by twice that, and so on, and never by less than before.
constexpr int kMostAttempts = 6;

// A first micro-batch whose values did not fit among gradients is asked for by this share of the
// bytes less, then by twice that, and so on.
constexpr std::int64_t kFirstShares = 32;
constexpr int kMostFirstAttempts = 5;

// Plans that look whether what is left then holds some choices, or moments, after all.
constexpr int kMostReturns = 4;
// More windows are taken while a step becomes this much shorter by twice as many.
constexpr double kWorthwhile = 0.995;
// Nodes that may be planned for that, all tries together: a large model's plan takes seconds.
constexpr std::size_t kPlannedNodes = 8000;

// The disk has less room than the states need that were to go there.
struct DiskSpaceError : plan::BudgetError {
  using plan::BudgetError::BudgetError;
};

class Compiler {
 public:
  Compiler(const CompileOptions& options, const spec::DeviceSpec& device)
      : options_(options),
        device_(device),
        is_on_disk_(options.disk.optimizer_state && options.training && options.with_update),
        has_masters_on_disk_(is_on_disk_ && options.disk.masters),
        has_parameters_on_disk_(is_on_disk_ && options.disk.parameters),
        num_windows_(options.disk.num_windows) {}

  // Where a budget is given and the choice is free: with the optimizer's state in memory, then on
  // disk, whichever costs a step less.
  Compiled run(ir::Graph forward) {
    if (options_.training && options_.memory.replay) {
      const spec::Decisions& replay = *options_.memory.replay;
      is_on_disk_ = replay.state_on_disk && has_update();
      has_masters_on_disk_ = is_on_disk_ && replay.masters_on_disk;
      has_parameters_on_disk_ = is_on_disk_ && replay.parameters_on_disk;
      if (is_on_disk_) {
        num_windows_ = replay.num_windows;
        resident_bytes_ = replay.resident_bytes;
      }
      return attempt(std::move(forward), replay.pack_transposed);
    }
    if (!has_update() || options_.memory.budget_bytes == 0) return run_packings(std::move(forward));
    if (is_on_disk_) return run_on_disk(forward);
    if (!options_.disk_choice.is_allowed) return run_packings(std::move(forward));
    std::optional<Compiled> resident;
    try {
      resident = run_packings(forward);
      if (!may_pay_on_disk(*resident)) return std::move(*resident);
    } catch (const plan::BudgetError&) {  // the second attempt says so too, of what it needs
    }
    is_on_disk_ = true;
    has_masters_on_disk_ = options_.disk.masters;
    has_parameters_on_disk_ = options_.disk.parameters;
    try {
      Compiled on_disk = run_on_disk(forward);
      if (!resident || step_seconds(on_disk) < step_seconds(*resident)) return on_disk;
    } catch (const plan::BudgetError&) {
      if (!resident) throw;
    }
    return std::move(*resident);
  }

 private:
  // The moments; and where they may go too and the budget is not kept otherwise, the lower halves
  // of parameters, then what the model reads of them: a quarter more for the disk to move, and half
  // as much again, cost more than making values again.
  Compiled run_on_disk(const ir::Graph& forward) {
    for (;;) {
      try {
        return run_windows(forward);
      } catch (const DiskSpaceError&) {
        throw;
      } catch (const plan::BudgetError&) {
        if (!take_more_to_disk()) throw;
      }
    }
  }

  // Whether an attempt that takes less follows where the one at hand does not keep the budget: that
  // one then says what it needs.
  bool has_another_way() const {
    const DiskChoice& choice = options_.disk_choice;
    if (options_.memory.replay) return false;
    if (pack_transposed_) return true;
    if (!is_on_disk_) return choice.is_allowed;
    return (choice.may_take_masters && !has_masters_on_disk_) ||
           (choice.may_take_parameters && !has_parameters_on_disk_);
  }

  // False where nothing more may go.
  bool take_more_to_disk() {
    const DiskChoice& choice = options_.disk_choice;
    if (choice.may_take_masters && !has_masters_on_disk_) return has_masters_on_disk_ = true;
    if (choice.may_take_parameters && !has_parameters_on_disk_)
      return has_parameters_on_disk_ = true;
    return false;
  }

  // With as many windows as pay, where their number is free.
  Compiled run_windows(const ir::Graph& forward) {
    Compiled on_disk = run_packings(forward);
    if (options_.disk.optimizer_state) return on_disk;
    if (const std::int64_t free_bytes = options_.disk_choice.free_bytes;
        on_disk.plan.disk_bytes > free_bytes)
      throw DiskSpaceError(
          fmt::format("[memory] expected {} free for the optimizer's state in "
                      "memory.swap_directory, got {}; "
                      "memory.budget {} does not hold it in memory",
                      format_bytes(on_disk.plan.disk_bytes), format_bytes(free_bytes),
                      format_bytes(options_.memory.budget_bytes)),
          0, "; largest are " + plan::largest_consumers(on_disk.graph, on_disk.plan));
    Compiled more_windows = with_more_windows(forward, on_disk);
    const bool has_more =
        more_windows.memory.decisions.num_windows != on_disk.memory.decisions.num_windows;
    Compiled few_windows = with_residents(forward, std::move(on_disk));
    if (!has_more) return few_windows;
    more_windows = with_residents(forward, std::move(more_windows));
    return step_seconds(few_windows) < step_seconds(more_windows) ? std::move(few_windows)
                                                                  : std::move(more_windows);
  }

  // Where a budget is given: with both packings of the weights, then with one, whichever costs
  // less.
  Compiled run_packings(ir::Graph forward) {
    const bool may_pack_again =
        options_.training && options_.memory.budget_bytes > 0 && options_.pack_transposed;
    if (!may_pack_again) return attempt(std::move(forward), options_.pack_transposed);
    std::optional<Compiled> both;
    try {
      both = attempt(forward, true);
      if (both->memory.choices.empty()) return std::move(*both);
    } catch (const plan::BudgetError&) {  // the second attempt says so too, of what it needs
    }
    try {
      Compiled one = attempt(std::move(forward), false);
      if (!both || step_seconds(one) < step_seconds(*both)) return one;
    } catch (const plan::BudgetError&) {
      if (!both) throw;
    }
    return std::move(*both);
  }

  // Of the attempt at hand. 0: none.
  std::int64_t budget_bytes() const {
    const std::int64_t budget = options_.memory.budget_bytes;
    const bool is_chosen = is_on_disk_ && !options_.disk.optimizer_state;
    if (budget == 0 || !is_chosen) return budget;
    return std::max<std::int64_t>(budget - options_.disk_choice.beside_bytes, 1);
  }

  double step_seconds(const Compiled& compiled) const {
    return price_step(compiled, plan::with_peaks(device_), options_.efficiency,
                      options_.disk_choice.num_micro_batches)
        .seconds;
  }

  // What the budget leaves goes to more windows, as long as they shorten the step.
  Compiled with_more_windows(const ir::Graph& forward, Compiled best) {
    const std::size_t most_tries =
        std::clamp<std::size_t>(kPlannedNodes / best.graph.nodes.size(), 1, 8);
    int num_idle = 0;
    for (std::size_t i = 0; i < most_tries && num_idle < 2; ++i) {
      num_windows_ *= 2;
      const bool pack_transposed = best.memory.decisions.pack_transposed;
      bool is_shorter = shorten(forward, pack_transposed, best);
      if (!is_shorter && options_.pack_transposed)
        is_shorter = shorten(forward, !pack_transposed, best);
      num_idle = is_shorter ? 0 : num_idle + 1;  // some windows' places are free in any case
    }
    return best;
  }

  // Takes the attempt at hand where it is worthwhile.
  bool shorten(const ir::Graph& forward, bool pack_transposed, Compiled& best) {
    try {
      Compiled next = attempt(forward, pack_transposed);
      if (step_seconds(next) > kWorthwhile * step_seconds(best)) return false;
      best = std::move(next);
      return true;
    } catch (const plan::BudgetError&) {
      return false;
    }
  }

  // What the budget still leaves holds some of the moments after all.
  Compiled with_residents(const ir::Graph& forward, Compiled best) {
    num_windows_ = best.memory.decisions.num_windows;
    for (int tries = 0; tries < kMostReturns; ++tries) {
      const std::int64_t room = budget_bytes() - best.plan.peak_bytes();
      if (room < options_.disk.slice_bytes) break;
      resident_bytes_ = best.memory.decisions.resident_bytes + room;
      try {
        Compiled next = attempt(forward, best.memory.decisions.pack_transposed);
        if (next.plan.windows.empty() || step_seconds(next) >= step_seconds(best)) break;
        best = std::move(next);
      } catch (const plan::BudgetError&) {
        break;
      }
    }
    resident_bytes_ = 0;
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

  Compiled attempt(ir::Graph forward, bool pack_transposed) {
    pack_transposed_ = pack_transposed;
    find_parameters_on_disk(forward);
    const Compiled& whole = with_passes(std::move(forward));
    Compiled result = whole;
    result.plan = plan_of(result.graph, nullptr);
    if (options_.training && options_.memory.asks()) {
      const plan::Plan whole_plan = result.plan;
      decide(result);
      ir::verify(result.graph);
      keep_in_first(whole.graph, whole_plan, result);
    }
    result.memory.decisions.pack_transposed = pack_transposed;
    result.memory.decisions.state_on_disk = !result.plan.windows.empty();
    result.memory.decisions.masters_on_disk =
        result.memory.decisions.state_on_disk && has_masters_on_disk_;
    result.memory.decisions.parameters_on_disk =
        result.memory.decisions.state_on_disk && has_parameters_on_disk_;
    result.memory.decisions.num_windows = is_on_disk_ ? num_windows_ : 0;
    result.memory.decisions.resident_bytes = resident_bytes_;
    result.memory.decisions.offloads = plan::offload_spans(result.graph, result.plan);
    if (has_update())
      plan::require_obeyed(result.graph, result.plan, options_.disk,
                           options_.memory.offload.is_allowed);
    price_packings(whole.graph, result);
    explain(result.graph);
    result.program = lower(result.graph, result.plan, device_);
    verify(result.graph, result.plan, result.program);
    if (result.first) {
      result.program.first = lower_first(result.first->graph, result.first->plan, device_);
      verify_first(result.first->graph, result.first->plan, result.program);
    }
    return result;
  }

  // The graph behind its pipeline, which attempts that differ only in the plan share.
  const Compiled& with_passes(ir::Graph forward) {
    const auto key = std::tuple(pack_transposed_, is_on_disk_, has_parameters_on_disk_);
    const auto [found, is_new] = behind_passes_.try_emplace(key);
    Compiled& result = found->second;
    if (is_new) {
      result.graph = std::move(forward);
      result.passes = passes::run_passes(
          result.graph,
          options_.training ? passes::training_pipeline() : passes::inference_pipeline(),
          context(nullptr),
          {.disabled = options_.disabled_passes, .dump_directory = options_.dump_directory});
    }
    return result;
  }

  passes::PassContext context(const spec::Decisions* decisions) const {
    return {.options = {.precision = options_.precision,
                        .optimizer = options_.optimizer,
                        .pack_transposed = pack_transposed_,
                        .with_update = options_.with_update,
                        .several_micro_batches = options_.micro_batches > 1,
                        .slice_bytes = is_on_disk_ ? options_.disk.slice_bytes : 0,
                        .state_layouts = &options_.state_layouts,
                        .on_disk = &parameters_on_disk_,
                        .decisions = decisions},
            .find_op = ops::find_op};
  }

  // Of the attempt at hand; by name, which passes keep.
  void find_parameters_on_disk(const ir::Graph& forward) {
    parameters_on_disk_ = options_.training ? passes::StateNames{} : options_.states_on_disk;
    if (!has_parameters_on_disk_) return;
    for (const ir::State& state : forward.states)
      if (state.kind == ir::StateKind::kParameter &&
          forward.value(state.before).type.num_bytes() >= options_.disk.min_parameter_bytes &&
          plan::may_go_to_disk(options_.disk, text(state.name)))
        parameters_on_disk_.insert(std::string(text(state.name)));
  }

  bool has_update() const { return options_.training && options_.with_update; }

  plan::Plan plan_of(const ir::Graph& graph, std::vector<std::string>* explanation) const {
    plan::DiskOptions disk = options_.disk;
    disk.optimizer_state = is_on_disk_;
    disk.masters = has_masters_on_disk_;
    disk.num_windows = num_windows_;
    disk.resident_bytes = resident_bytes_;
    return plan::make_plan(
        graph, device_,
        {.trivial = options_.trivial_planners,
         .single_micro_batch = options_.micro_batches == 1 && options_.with_update,
         .only_kernels = options_.only_kernels,
         .disk = disk,
         .efficiency = &options_.efficiency,
         .offloads =
             options_.memory.replay ? options_.memory.replay->offloads : spec::OffloadSpans{},
         .explanation = explanation});
  }

  // `whole`: what calls that are cut pack themselves still has nodes there.
  void price_packings(const ir::Graph& whole, Compiled& result) const {
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

  void explain(const ir::Graph& graph) const {
    if (!options_.explain_dispatch) return;
    std::vector<std::string> explanation;
    plan_of(graph, &explanation);
    for (const std::string& line : explanation) log_line(LogLevel::kInfo, line);
  }

  // Replaces graph and plan, which keep everything, by those of the decision.
  void decide(Compiled& result) const {
    const std::int64_t budget = budget_bytes(),
                       beside_frame = result.plan.peak_bytes() - result.plan.frame_bytes;
    if (budget > 0 && beside_frame >= budget && has_another_way())
      throw plan::BudgetError(
          fmt::format("[memory] expected a step of at most {}, got {} beside what may be chosen",
                      format_bytes(budget), format_bytes(beside_frame)),
          beside_frame);
    const ir::Graph whole = result.graph;
    const plan::Plan whole_plan = result.plan;
    const spec::DeviceSpec priced = plan::with_peaks(device_);
    const plan::RecomputeMenu menu(whole, whole_plan, priced, options_.efficiency,
                                   options_.memory.compression, options_.memory.offload);
    const plan::MemoryDecider decider(menu, options_.memory);
    std::int64_t frame_bytes = whole_plan.frame_bytes;
    std::int64_t smallest = whole_plan.peak_bytes();
    if (budget > 0) frame_bytes -= std::max<std::int64_t>(whole_plan.peak_bytes() - budget, 0);
    std::int64_t less = 0;
    for (int attempt = 0;; ++attempt) {
      plan::MemoryDecision decision = decider.decide_cheapest(frame_bytes);
      if (attempt == 0 && decision.choices.empty())
        result.memory = std::move(decision);  // the plan that keeps everything stands
      else
        take(std::move(decision), whole, result);
      const std::int64_t excess = result.plan.peak_bytes() - budget;
      smallest = std::min(smallest, result.plan.peak_bytes());
      if (budget > 0 && excess <= 0) keep_again(decider, whole, frame_bytes, result);
      if (budget == 0 || excess <= 0) return;
      less = std::max(less, excess << attempt);
      if (!result.memory.holds || attempt + 1 == kMostAttempts || frame_bytes <= less)
        refuse(result, smallest);
      frame_bytes -= less;
    }
  }

  // What is not kept for lack of bytes is kept in a step's first micro-batch, as far as gradients
  // that are not begun leave them.
  void keep_in_first(const ir::Graph& whole, const plan::Plan& whole_plan, Compiled& result) const {
    const bool may = has_update() && options_.micro_batches > 1 && !options_.trivial_planners &&
                     !options_.optimizer.in_backward && !result.memory.choices.empty() &&
                     whole_plan.windows.empty() && whole_plan.offloads.empty() &&
                     options_.memory.offload.cold.empty();
    plan::MemoryOptions memory = options_.memory;
    memory.offload = {};
    if (memory.replay) {
      if (!memory.replay->first) return;
      ANABATIC_REQUIRE(may,
                       "[memory] expected a saved plan whose first micro-batch is like the "
                       "others, as this run's is");
      static_cast<spec::MicroBatchDecisions&>(*memory.replay) = *memory.replay->first;
    } else if (!may) {
      return;
    }
    const plan::Plan timeline = plan::with_gradients_in_frame(whole_plan);
    const spec::DeviceSpec priced = plan::with_peaks(device_);
    const plan::RecomputeMenu menu(whole, timeline, priced, options_.efficiency, memory.compression,
                                   memory.offload);
    const plan::MemoryDecider decider(menu, memory);
    const std::int64_t room = result.plan.frame_bytes + result.plan.gradient_bytes;
    for (int attempt = 0; attempt < kMostFirstAttempts; ++attempt) {
      const std::int64_t less = attempt == 0 ? 0 : room / kFirstShares << (attempt - 1);
      plan::MemoryDecision decision = decider.decide(room - less);
      const bool is_better = decision.holds && decision.added_seconds < result.memory.added_seconds;
      if (!is_better && !memory.replay) return;
      Compiled first;
      first.graph = whole;
      first.plan = whole_plan;
      if (!decision.choices.empty()) take(std::move(decision), whole, first);
      auto plan = plan::plan_among_gradients(first.graph, first.plan, result.plan.frame_bytes);
      if (!plan) continue;
      result.first = {std::move(first.graph), std::move(*plan)};
      result.memory.decisions.first = first.memory.decisions;
      result.memory.first_choices = std::move(first.memory.choices);
      result.memory.first_added_seconds = first.memory.added_seconds;
      return;
    }
    ANABATIC_REQUIRE(!memory.replay,
                     "[memory] the saved plan's first micro-batch keeps more than "
                     "this run has room for");
  }

  void take(plan::MemoryDecision decision, const ir::Graph& whole, Compiled& result) const {
    result.memory = std::move(decision);
    result.graph = whole;
    // The last two of the pipeline, which had nothing to cut or make again.
    const passes::Pass decided[] = {passes::kSliceCalls, passes::kRecompute};
    result.passes.resize(result.passes.size() - std::min(result.passes.size(), std::size(decided)));
    for (passes::PassReport& report :
         passes::run_passes(result.graph, decided, context(&result.memory.decisions),
                            {.facts = {"differentiated"}, .checks = false}))
      result.passes.push_back(std::move(report));
    result.plan = plan_of(result.graph, nullptr);
  }

  // The timeline was asked for less than the budget, so that the plan keeps it; what the plan then
  // has room for need not be made again. The dearest for its bytes comes first.
  void keep_again(const plan::MemoryDecider& decider, const ir::Graph& whole,
                  std::int64_t frame_bytes, Compiled& result) const {
    if (options_.memory.replay) return;
    std::size_t most = result.memory.choices.size();
    for (int attempt = 0; attempt < kMostReturns; ++attempt) {
      const std::vector<plan::PricedChoice> choices = room_for(decider, result, most);
      if (choices.empty()) return;
      Compiled fewer = result;
      take(decider.without(result.memory, choices, frame_bytes), whole, fewer);
      if (fewer.plan.peak_bytes() <= budget_bytes() &&
          fewer.memory.added_seconds <= result.memory.added_seconds)
        result = std::move(fewer);
      else
        most = choices.size() / 2;
    }
  }

  // Choices, at most that many, whose bytes fit between the plan's peak and the budget.
  std::vector<plan::PricedChoice> room_for(const plan::MemoryDecider& decider,
                                           const Compiled& result, std::size_t most) const {
    std::vector<plan::PricedChoice> choices = result.memory.choices;
    std::stable_sort(choices.begin(), choices.end(), [](const auto& a, const auto& b) {
      return a.seconds * static_cast<double>(b.bytes) > b.seconds * static_cast<double>(a.bytes);
    });
    std::int64_t room = budget_bytes() - result.plan.peak_bytes();
    std::vector<plan::PricedChoice> fitting;
    for (const plan::PricedChoice& choice : choices) {
      if (fitting.size() == most || choice.bytes > room || decider.is_hinted(choice)) continue;
      fitting.push_back(choice);
      room -= choice.bytes;
    }
    return fitting;
  }

  [[noreturn]] void refuse(const Compiled& result, std::int64_t smallest) const {
    throw plan::BudgetError(
        fmt::format("[memory] expected a step of at most {}, got {} at the least",
                    format_bytes(budget_bytes()), format_bytes(smallest)),
        smallest + options_.memory.budget_bytes - budget_bytes(),
        fmt::format("; largest are {}{}", plan::largest_consumers(result.graph, result.plan),
                    options_.disk_choice.refusal.empty()
                        ? ""
                        : "; the optimizer's state on disk: " + options_.disk_choice.refusal));
  }

  const CompileOptions& options_;
  const spec::DeviceSpec& device_;
  bool pack_transposed_ = true;
  bool is_on_disk_;  // of the attempt at hand
  bool has_masters_on_disk_, has_parameters_on_disk_;
  std::int32_t num_windows_;
  std::int64_t resident_bytes_ = 0;
  // By what the pipeline of an attempt looks at.
  std::map<std::tuple<bool, bool, bool>, Compiled> behind_passes_{};
  passes::StateNames parameters_on_disk_{};
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

Compiled compile(ir::Graph forward, const CompileOptions& options, const spec::DeviceSpec& device) {
  Compiled result = Compiler(options, device).run(std::move(forward));
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
