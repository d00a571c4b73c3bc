// SPDX-License-Identifier: Apache-2.0
#include "train/run_plan.h"

#include <fmt/core.h>

#include <algorithm>
#include <limits>

#include "base/error.h"
#include "base/text.h"
#include "plan/largest_consumers.h"
#include "train/memory_account.h"
#include "train/swap_tier.h"

namespace anabatic::train {
namespace {

// Plans of a run that may ask for its budget anew: what lies outside the step grows with the nodes
// that make values again, a little each time. The next asks for what the last was too large, the
// one after it for twice that, and so on.
constexpr int kMostBudgetAttempts = 6;

model::BalanceLoss balance_loss_of(const RunConfig& run) {
  using enum model::BalanceLoss;
  if (run.train.balance_loss == "sequence") return kSequence;
  if (run.train.balance_loss == "all_layers") return kAllLayers;
  return run.train.balance_loss == "none" ? kNone : kLayer;
}

// A weight of a loss that the model does not have.
void require_experts(const RunConfig& run, const model::ModelConfig& config) {
  const auto require = [&](const char* key, double coef) {
    ANABATIC_REQUIRE(coef == 0 || config.num_experts > 0,
                     "[train] {}: expected a model with experts, got {} without any ({})", key,
                     config.model_type, coef);
  };
  require("train.balance_coef", std::max(run.train.balance_coef, 0.0));
  require("train.router_z_loss_coef", run.train.router_z_loss_coef);
}

}  // namespace

ModelSession::CompileRequest training_request(const RunConfig& run,
                                              const model::ModelConfig& config) {
  require_experts(run, config);
  return {.name = "training",
          .build = {.num_tokens = run.train.micro_batch_size * run.data.sequence_length,
                    .balance_loss = balance_loss_of(run),
                    .balance_coef = run.train.balance_coef == RunConfig::Train::kCoefOfModel
                                        ? config.router_aux_loss_coef
                                        : run.train.balance_coef,
                    .z_loss_coef = run.train.router_z_loss_coef},
          .training = true,
          .with_update = true,
          .micro_batches = run.train.gradient_accumulation_steps};
}

ModelSession::CompileRequest evaluation_request(const RunConfig& run) {
  return {.name = "evaluation",
          .build = {.num_tokens = run.train.micro_batch_size * run.data.sequence_length}};
}

RunPlan plan_run(const RunConfig& run, const model::ModelConfig& config,
                 const spec::DeviceSpec& device, const plan::OpEfficiency& efficiency,
                 const StepRequest& step) {
  const auto compile = [&](const ModelSession::CompileRequest& request,
                           const std::vector<runtime::StateSlot>& states) {
    lower::CompileOptions options = compile_options(run, request);
    for (const runtime::StateSlot& slot : states) {
      options.state_layouts[std::string(text(slot.name))] = slot.type.layout;
      if (slot.is_on_disk) options.states_on_disk.insert(std::string(text(slot.name)));
    }
    options.efficiency = efficiency_of(efficiency, run);
    if (step.replay && request.training) options.memory.replay = *step.replay;
    if (step.near && request.training) options.near = *step.near;
    return lower::compile(model::build_graph(config, request.build), options, device);
  };
  ModelSession::CompileRequest training = training_request(run, config);
  training.budget_bytes = step.bytes;
  RunPlan result{.training = compile(training, {}), .step_bytes = step.bytes};
  if (run.data.validation.empty()) return result;
  result.evaluation = compile(evaluation_request(run), result.training.program.states);
  return result;
}

namespace {

// What a budget holds beside the step.
constexpr const char* kBesideStep = "code, libraries, batches, staging and validation";

std::vector<plan::Consumer> consumers_of(const RunPlan& plan) {
  return plan::largest_consumers(plan.training.graph, plan.training.plan);
}

// What a plan anew could make use of: the smallest choice, and a thousandth of the step.
std::int64_t least_room(const RunPlan& plan) {
  std::int64_t bytes = std::numeric_limits<std::int64_t>::max();
  for (const plan::PricedChoice& choice : plan.training.memory.choices)
    bytes = std::min(bytes, choice.bytes);
  return std::max(bytes, plan.step_bytes / 1000);
}

// `plan`, or a faster one of a step that may take `room` bytes more: what lies outside the step may
// be less than the budget was split by.
RunPlan with_room(RunPlan plan, const RunConfig& run, const model::ModelConfig& config,
                  const spec::DeviceSpec& device, const plan::OpEfficiency& efficiency,
                  std::int64_t process_bytes, std::int64_t room) {
  try {
    RunPlan roomier =
        plan_run(run, config, device, efficiency,
                 {.bytes = plan.step_bytes + room, .near = &plan.training.memory.decisions});
    const MemoryAccount account =
        account_memory(run, roomier.training, roomier.evaluation ? &*roomier.evaluation : nullptr,
                       device.num_threads, process_bytes);
    if (account.peak_bytes <= run.memory.budget &&
        roomier.training.memory.added_seconds < plan.training.memory.added_seconds)
      return roomier;
  } catch (const plan::BudgetError&) {  // a larger budget that does not hold: the smaller one does
  }
  return plan;
}

}  // namespace

RunPlan plan_within_budget(const RunConfig& run, const model::ModelConfig& config,
                           const spec::DeviceSpec& device, const plan::OpEfficiency& efficiency,
                           std::int64_t process_bytes, const RunPlan* whole) {
  RunPlan result = whole ? *whole : plan_run(run, config, device, efficiency);
  if (run.memory.budget <= 0) return result;
  for (int attempt = 0; attempt < kMostBudgetAttempts; ++attempt) {
    const std::int64_t peak =
        account_memory(run, result.training, result.evaluation ? &*result.evaluation : nullptr,
                       device.num_threads, process_bytes)
            .peak_bytes;
    if (peak <= run.memory.budget) {
      const std::int64_t room = run.memory.budget - peak;
      if (result.step_bytes == 0 || room < least_room(result)) return result;
      return with_room(std::move(result), run, config, device, efficiency, process_bytes, room);
    }
    const bool chose_disk =
        run.memory.optimizer_state == "auto" && !result.training.plan.windows.empty();
    const std::int64_t planned =
        result.training.plan.peak_bytes() + (chose_disk ? bytes_beside_disk() : 0);
    const std::int64_t step_bytes =
        (result.step_bytes > 0 ? std::min(result.step_bytes, planned) : planned) -
        ((peak - run.memory.budget) << std::max(attempt - 1, 0));
    const std::int64_t others = peak - planned;
    if (step_bytes <= 0)
      throw plan::BudgetError(
          fmt::format("[memory] expected a memory.budget of more than {}, which {} take, got {}",
                      format_bytes(others), kBesideStep, format_bytes(run.memory.budget)),
          0, consumers_of(result));
    try {
      const spec::Decisions last = result.training.memory.decisions;
      result = plan_run(run, config, device, efficiency,
                        {.bytes = step_bytes, .near = attempt == 0 ? nullptr : &last});
    } catch (const plan::BudgetError& error) {
      if (error.smallest_bytes() == 0) throw;
      throw plan::BudgetError(
          fmt::format("[memory] expected a process of at most {}, got {} at the least: {} of a "
                      "step and {} of {}",
                      format_bytes(run.memory.budget),
                      format_bytes(error.smallest_bytes() + others),
                      format_bytes(error.smallest_bytes()), format_bytes(others), kBesideStep),
          error.smallest_bytes() + others, error.consumers());
    }
  }
  throw plan::BudgetError(
      fmt::format("[memory] expected a plan within memory.budget {}, got none in {} attempts",
                  format_bytes(run.memory.budget), kMostBudgetAttempts),
      0, consumers_of(result));
}

plan::StepPrice price_run(const RunConfig& run, const lower::Compiled& training,
                          const spec::DeviceSpec& device, plan::OpEfficiency efficiency) {
  return lower::price_step(training, plan::with_peaks(device),
                           efficiency_of(std::move(efficiency), run),
                           run.train.gradient_accumulation_steps);
}

std::map<std::string, double> price_segments(const RunConfig& run, const lower::Compiled& training,
                                             const spec::DeviceSpec& device,
                                             plan::OpEfficiency efficiency) {
  return lower::price_segments(training, plan::with_peaks(device),
                               efficiency_of(std::move(efficiency), run),
                               run.train.gradient_accumulation_steps);
}

std::int64_t offloaded_bytes(const plan::Plan& plan) {
  std::int64_t bytes = 0;
  for (const plan::Offload& offload : plan.offloads)
    if (!offload.is_of_state()) bytes += offload.bytes;
  return bytes;
}

namespace {

std::string parameters_to_string(const spec::Decisions& decisions) {
  const std::size_t resident = decisions.resident_parameters.size();
  return resident == 0 ? " and parameters"
                       : fmt::format(" and parameters, but for {} of these", resident);
}

}  // namespace

std::string disk_to_string(const RunConfig& run, const lower::Compiled& training,
                           const plan::StepPrice& price) {
  const plan::Plan& plan = training.plan;
  if (plan.disk_bytes > 0) {
    const DiskMeasurement disk = stored_disk_speed(run);
    const std::int64_t activations = offloaded_bytes(plan);
    std::string what;
    if (!plan.windows.empty()) {
      const spec::Decisions& decisions = training.memory.decisions;
      what =
          fmt::format("{} of the optimizer's state{}", format_bytes(plan.disk_bytes - activations),
                      decisions.parameters_on_disk ? parameters_to_string(decisions)
                      : decisions.masters_on_disk  ? " and the lower halves of parameters"
                                                   : "");
    }
    if (activations > 0)
      what +=
          fmt::format("{}{} of activations", what.empty() ? "" : ", ", format_bytes(activations));
    return fmt::format(
        "{}; this costs a step {:.3g} s by {:.2f} GB/s read, {:.2f} GB/s written ({})", what,
        price.disk_seconds, 1e-9 * disk.speed.read_bytes_per_second,
        1e-9 * disk.speed.written_bytes_per_second, disk.source);
  }
  if (run.memory.masters == "disk" || run.memory.parameters == "disk")
    return "nothing: masters and parameters go where the optimizer's state goes "
           "(memory.optimizer_state)";
  if (run.memory.optimizer_state != "auto" || run.memory.budget <= 0) return "";
  const std::string refusal = find_swap_place(run).refusal;
  return refusal.empty() ? "nothing" : "nothing: " + refusal;
}

}  // namespace anabatic::train
