// SPDX-License-Identifier: Apache-2.0
#include "train/run_plan.h"

#include <fmt/core.h>

#include <algorithm>
#include <limits>

#include "base/error.h"
#include "base/text.h"
#include "plan/largest_consumers.h"
#include "search/fit.h"
#include "train/memory_account.h"
#include "train/objective/run_model.h"
#include "train/swap_tier.h"

namespace anabatic::train {
namespace {

// Most plans of a run that may change its budget: memory outside the step grows with the nodes that
// recompute values, a little each time.
constexpr int kMostBudgetAttempts = 6;

model::BalanceLoss balance_loss_of(const RunConfig& run) {
  using enum model::BalanceLoss;
  if (run.train.balance_loss == "sequence") return kSequence;
  if (run.train.balance_loss == "all_layers") return kAllLayers;
  return run.train.balance_loss == "none" ? kNone : kLayer;
}

std::optional<model::Preference> preference_of(const RunConfig& run) {
  if (!trains_on_pairs(run)) return std::nullopt;
  return model::Preference{.loss = run.dpo.loss,
                           .beta = run.dpo.beta,
                           .label_smoothing = run.dpo.label_smoothing,
                           .length_normalized = run.dpo.length_normalized};
}

// A weight of a loss that the model does not have.
void require_experts(const RunConfig& run, const model::ModelConfig& config) {
  const auto require = [&](const char* key, double coef) {
    ANABATIC_REQUIRE(coef == 0 || model::num_experts(config.spec) > 0,
                     "[train] {}: expected a model with experts, got {} without any ({})", key,
                     config.model_type, coef);
  };
  require("train.balance_coef", std::max(run.train.balance_coef, 0.0));
  require("train.router_z_loss_coef", run.train.router_z_loss_coef);
  const model::Moe* moe = model::first_moe(config.spec);
  ANABATIC_REQUIRE(
      run.train.router_bias_update_rate <= 0 || (moe != nullptr && moe->router.form.has_bias),
      "[train] train.router_bias_update_rate: expected a model whose routers have a bias of the "
      "choice, got {} without one ({})",
      config.model_type, run.train.router_bias_update_rate);
}

}  // namespace

ModelSession::CompileRequest training_request(const RunConfig& run,
                                              const model::ModelConfig& config) {
  require_experts(run, config);
  ANABATIC_REQUIRE(run.model.adapter.empty(),
                   "[train] model.adapter: expected none, got {}; lora.from trains an adapter on",
                   run.model.adapter);
  return {.name = "training",
          .build = {.num_tokens = run.train.micro_batch_size * run.data.sequence_length,
                    .longest_document = run.data.sequence_length,
                    .balance_loss = balance_loss_of(run),
                    .balance_coef = balance_coef_of(run, config),
                    .z_loss_coef = run.train.router_z_loss_coef,
                    .keeps_mtp = !config.spec.mtp.empty(),
                    .mtp_coef = mtp_coef_of(run, config),
                    .with_weights = trains_on_rows(run),
                    .preference = preference_of(run),
                    .dropout = dropout_of(run, config)},
          .training = true,
          .with_update = true,
          .micro_batches = run.train.gradient_accumulation_steps,
          .as_trained = true,
          .is_of_ranks = true};
}

ModelSession::CompileRequest evaluation_request(const RunConfig& run) {
  return {.name = "evaluation",
          .build = {.num_tokens = run.train.micro_batch_size * run.data.sequence_length,
                    .longest_document = run.data.sequence_length,
                    .with_weights = trains_on_rows(run),
                    .preference = preference_of(run)},
          .as_trained = true,
          .is_validation = true,
          .is_of_ranks = true};
}

plan::Outcome<RunPlan> plan_run(const RunConfig& run, const model::ModelConfig& config,
                                const spec::DeviceSpec& device,
                                const plan::OpEfficiency& efficiency, const StepRequest& step) {
  bool keeps_packings = true;  // of the training program
  const auto compile = [&](const ModelSession::CompileRequest& request,
                           const std::vector<runtime::StateSlot>& states) {
    lower::CompileOptions options = compile_options(run, request);
    for (const runtime::StateSlot& slot : states) {
      options.held_states[std::string(text(slot.name))] = {slot.part.role, slot.type.layout,
                                                           slot.type.blocks, slot.type.dtype};
      if (slot.is_on_disk) options.states_on_disk.insert(std::string(text(slot.name)));
    }
    if (!request.training && !keeps_packings) options.streams_weights = true;
    options.efficiency = efficiency_of(efficiency, run);
    options.rank = step.rank;
    options.checks_passes = step.rank == 0;  // whose passes all ranks run
    if (request.training)
      options.expert_capacity = step.replay                        ? step.replay->expert_capacity
                                : run.parallel.expert_capacity > 0 ? run.parallel.expert_capacity
                                                                   : step.expert_capacity;
    if (step.replay && request.training) options.memory.replay = *step.replay;
    if (step.warm_start && request.training) options.warm_start = *step.warm_start;
    return lower::try_compile(forward_graph(run, config, request.build), options, device);
  };
  ModelSession::CompileRequest training = training_request(run, config);
  training.budget_bytes = step.bytes;
  plan::Outcome<lower::Compiled> compiled = compile(training, {});
  if (!compiled) return compiled.refusal();
  RunPlan result{.training = *std::move(compiled), .step_bytes = step.bytes};
  keeps_packings = result.training.memory.decisions.keep_packings;
  if (!run.data.validation.empty())
    result.evaluation = *compile(evaluation_request(run), result.training.program.states);
  return result;
}

namespace {

// The least room that another plan could use: the smallest choice, and a thousandth of the step.
std::int64_t least_room(const RunPlan& plan) {
  std::int64_t bytes = std::numeric_limits<std::int64_t>::max();
  for (const plan::PricedChoice& choice : plan.training.memory.choices)
    bytes = std::min(bytes, choice.bytes);
  return std::max(bytes, plan.step_bytes / 1000);
}

// The bytes of the plan that count against a budget of the step.
std::int64_t step_bytes(const RunConfig& run, const RunPlan& plan) {
  const bool chose_disk =
      run.memory.optimizer_state == "auto" && !plan.training.plan.windows.empty();
  return plan.training.plan.peak_bytes() + (chose_disk ? bytes_beside_disk() : 0);
}

// By how much a process of `plan` exceeds the budget.
std::int64_t excess_of(const RunConfig& run, const RunPlan& plan, std::int64_t num_threads,
                       std::int64_t process_bytes) {
  return account_memory(run, plan.training, plan.evaluation ? &*plan.evaluation : nullptr,
                        num_threads, process_bytes)
             .peak_bytes -
         run.memory.budget;
}

plan::Refusal nothing_within(const RunConfig& run, const RunPlan& last) {
  return {.reason = fmt::format("[memory] expected a plan within memory.budget {}, got none",
                                format_bytes(run.memory.budget)),
          .consumers = plan::largest_consumers(last.training.graph, last.training.plan)};
}

// The refusal of a step in terms of its process, which holds `beside_step` bytes in addition.
plan::Refusal of_process(plan::Refusal refusal, std::int64_t beside_step) {
  if (refusal.smallest_bytes > 0) refusal.smallest_bytes += beside_step;
  return refusal;
}

}  // namespace

plan::Outcome<RunPlan> plan_within_budget(const RunConfig& run, const model::ModelConfig& config,
                                          const spec::DeviceSpec& device,
                                          const plan::OpEfficiency& efficiency,
                                          std::int64_t process_bytes, const RunPlan* whole) {
  RunPlan plan = whole ? *whole : *plan_run(run, config, device, efficiency);
  if (run.memory.budget <= 0) return plan;
  std::int64_t excess = excess_of(run, plan, device.num_threads, process_bytes);
  if (excess <= 0) return plan;
  const auto plan_step = [&](std::int64_t bytes) {
    return plan_run(
        run, config, device, efficiency,
        {.bytes = bytes,
         .warm_start = plan.step_bytes > 0 ? &plan.training.memory.decisions : nullptr});
  };
  std::optional<plan::Refusal> refusal;
  const auto ask = [&](std::int64_t bytes) -> std::optional<search::Answer> {
    plan::Outcome<RunPlan> next = plan_step(bytes);
    if (!next) {
      refusal = of_process(next.refusal(), run.memory.budget + excess - step_bytes(run, plan));
      return std::nullopt;
    }
    plan = *std::move(next);
    excess = excess_of(run, plan, device.num_threads, process_bytes);
    return search::Answer{.excess = excess, .taken = step_bytes(run, plan)};
  };
  const std::int64_t bytes = step_bytes(run, plan) - excess;
  if (bytes <= 0 || !search::fit(bytes, kMostBudgetAttempts, ask))
    return refusal ? *std::move(refusal) : nothing_within(run, plan);
  if (-excess < least_room(plan)) return plan;
  // Memory outside the step may be less than was subtracted from the budget: a faster plan may use
  // it.
  plan::Outcome<RunPlan> roomier = plan_step(plan.step_bytes - excess);
  const bool is_faster =
      roomier && excess_of(run, *roomier, device.num_threads, process_bytes) <= 0 &&
      roomier->training.memory.added_seconds < plan.training.memory.added_seconds;
  return is_faster ? *std::move(roomier) : std::move(plan);
}

plan::StepPrice price_run(const RunConfig& run, const lower::Compiled& training,
                          const spec::DeviceSpec& device, plan::OpEfficiency efficiency) {
  return search::price_step(training, plan::with_peaks(device),
                            efficiency_of(std::move(efficiency), run),
                            run.train.gradient_accumulation_steps);
}

std::map<std::string, double> price_segments(const RunConfig& run, const lower::Compiled& training,
                                             const spec::DeviceSpec& device,
                                             plan::OpEfficiency efficiency) {
  return search::price_segments(training, plan::with_peaks(device),
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
                       : fmt::format(" and parameters, except {} of these", resident);
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
                      : decisions.masters_on_disk  ? " and the lower 16 bits of parameters"
                                                   : "");
    }
    if (activations > 0)
      what +=
          fmt::format("{}{} of activations", what.empty() ? "" : ", ", format_bytes(activations));
    return fmt::format(
        "{}; this adds {:.3g} s to a step at {:.2f} GB/s read, {:.2f} GB/s written ({})", what,
        price.disk_seconds, 1e-9 * disk.speed.read_bytes_per_second,
        1e-9 * disk.speed.written_bytes_per_second, disk.source);
  }
  if (run.memory.masters == "disk" || run.memory.parameters == "disk")
    return "nothing: memory.masters and memory.parameters follow the optimizer's state "
           "(memory.optimizer_state)";
  if (run.memory.optimizer_state != "auto" || run.memory.budget <= 0) return "";
  const std::string refusal = find_swap_place(run).refusal;
  return refusal.empty() ? "nothing" : "nothing: " + refusal;
}

}  // namespace anabatic::train
