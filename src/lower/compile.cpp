// SPDX-License-Identifier: Apache-2.0
#include "lower/compile.h"

#include <algorithm>
#include <optional>

#include "base/log.h"
#include "base/text.h"
#include "lower/lower.h"
#include "ops/table.h"
#include "passes/pipelines.h"
#include "passes/recompute.h"

namespace anabatic::lower {
namespace {

// A plan may need a little more than the simulated timeline says; its frame is asked for anew, each
// time by what it was too large, and by twice that when it has been twice.
constexpr int kMostAttempts = 8;

class Compiler {
 public:
  Compiler(const CompileOptions& options, const spec::DeviceSpec& device)
      : options_(options), device_(device) {}

  // Where a budget is given: with both packings of the weights, then with one, whichever costs
  // less.
  Compiled run(ir::Graph forward) {
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
      if (!both || one.memory.added_seconds < both->memory.added_seconds) return one;
    } catch (const plan::BudgetError&) {
      if (!both) throw;
    }
    return std::move(*both);
  }

 private:
  Compiled attempt(ir::Graph forward, bool pack_transposed) {
    pack_transposed_ = pack_transposed;
    Compiled result{.graph = std::move(forward)};
    const std::vector<passes::Pass> pipeline =
        options_.training ? passes::training_pipeline() : passes::inference_pipeline();
    result.passes = passes::run_passes(
        result.graph, pipeline, context(nullptr),
        {.disabled = options_.disabled_passes, .dump_directory = options_.dump_directory});
    result.plan = plan_of(result.graph, nullptr);
    if (options_.training && options_.memory.asks()) decide(result);
    price_packings(result);
    explain(result.graph);
    result.program = lower(result.graph, result.plan, device_);
    verify(result.graph, result.plan, result.program);
    return result;
  }

  passes::PassContext context(const spec::Decisions* decisions) const {
    return {.options = {.precision = options_.precision,
                        .optimizer = options_.optimizer,
                        .pack_transposed = pack_transposed_,
                        .with_update = options_.with_update,
                        .state_layouts = &options_.state_layouts,
                        .decisions = decisions},
            .find_op = ops::find_op};
  }

  plan::Plan plan_of(const ir::Graph& graph, std::vector<std::string>* explanation) const {
    plan::DiskOptions disk = options_.disk;
    disk.optimizer_state &= options_.training && options_.with_update;
    return plan::make_plan(
        graph, device_,
        {.trivial = options_.trivial_planners,
         .single_micro_batch = options_.single_micro_batch && options_.with_update,
         .only_kernels = options_.only_kernels,
         .disk = disk,
         .explanation = explanation});
  }

  void price_packings(Compiled& result) const {
    const spec::DeviceSpec priced = plan::with_peaks(device_);
    for (const ir::Node& node : result.graph.nodes) {
      if (node.op->name != "pack" || node.tag.phase != ir::Phase::kRecompute) continue;
      result.memory.packings_bytes += result.graph.value(node.outputs[0]).type.num_bytes();
      result.memory.packing_seconds +=
          plan::predicted_seconds(result.graph, node, priced, options_.efficiency);
    }
    result.memory.added_seconds += result.memory.packing_seconds;
  }

  void explain(const ir::Graph& graph) const {
    if (!options_.explain_dispatch) return;
    std::vector<std::string> explanation;
    plan_of(graph, &explanation);
    for (const std::string& line : explanation) log_line(LogLevel::kInfo, line);
  }

  // Replaces graph and plan, which keep everything, by those of the decision.
  void decide(Compiled& result) const {
    const std::int64_t budget = options_.memory.budget_bytes;
    const ir::Graph whole = result.graph;
    const plan::Plan whole_plan = result.plan;
    const spec::DeviceSpec priced = plan::with_peaks(device_);
    const plan::RecomputeMenu menu(whole, whole_plan, priced, options_.efficiency,
                                   options_.memory.compression);
    std::int64_t frame_bytes = whole_plan.frame_bytes;
    std::int64_t smallest = whole_plan.peak_bytes();
    if (budget > 0) frame_bytes -= std::max<std::int64_t>(whole_plan.peak_bytes() - budget, 0);
    for (int attempt = 0;; ++attempt) {
      result.memory = plan::decide_memory(menu, options_.memory, frame_bytes);
      result.graph = whole;
      // The last of the pipeline, which had nothing to make again.
      result.passes.back() =
          passes::run_passes(result.graph, {&passes::kRecompute, 1},
                             context(&result.memory.decisions), {.facts = {"differentiated"}})[0];
      result.plan = plan_of(result.graph, nullptr);
      const std::int64_t excess = result.plan.peak_bytes() - budget;
      smallest = std::min(smallest, result.plan.peak_bytes());
      if (budget == 0 || excess <= 0) return;
      if (!result.memory.holds || attempt + 1 == kMostAttempts || frame_bytes <= 2 * excess)
        refuse(result, smallest);
      frame_bytes -= attempt < 2 ? excess : 2 * excess;
    }
  }

  [[noreturn]] void refuse(const Compiled& result, std::int64_t smallest) const {
    throw plan::BudgetError(
        fmt::format("[memory] expected a step of at most {}, got {} at the least; largest are {}",
                    format_bytes(options_.memory.budget_bytes), format_bytes(smallest),
                    plan::largest_consumers(result.graph, result.plan)));
  }

  const CompileOptions& options_;
  const spec::DeviceSpec& device_;
  bool pack_transposed_ = true;
};

}  // namespace

Compiled compile(ir::Graph forward, const CompileOptions& options, const spec::DeviceSpec& device) {
  Compiled result = Compiler(options, device).run(std::move(forward));
  if (!options.dump_directory.empty()) {
    const std::filesystem::path directory(options.dump_directory);
    if (!result.memory.choices.empty())
      write_file_atomically(directory / fmt::format("{:02}_recompute.ir", result.passes.size()),
                            ir::print(result.graph));
    write_file_atomically(directory / "plan.txt", plan::print(result.graph, result.plan));
    write_file_atomically(directory / "program.txt", runtime::print(result.program));
  }
  return result;
}

}  // namespace anabatic::lower
