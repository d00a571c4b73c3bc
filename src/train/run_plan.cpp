// SPDX-License-Identifier: Apache-2.0
#include "train/run_plan.h"

#include <fmt/core.h>

#include <algorithm>
#include <limits>
#include <set>

#include "base/text.h"
#include "plan/offsets.h"
#include "runtime/state_store.h"
#include "runtime/swap/swap_space.h"
#include "train/state_tiers.h"
#include "train/swap_tier.h"

namespace anabatic::train {
namespace {

constexpr std::int64_t kPageBytes = 4096;

// Nodes, values, buffers and calls with their operands, names and attributes, measured on graphs of
// 400 to 3,000 nodes: between 2.0 and 2.9 KiB a node.
constexpr std::int64_t kProgramBytesANode = 3072;

// Regions, windows, points and slots of a state on disk, and the spelling of a tensor of a file.
constexpr std::int64_t kBytesAStateOnDisk = 1024, kBytesAFileTensor = 384;

// Import, checkpoint and export pass states through blocks of 2^20 elements, at most two of 4 bytes
// at a time: values as f32 and as the file has them, or a page of the file.
constexpr std::int64_t kStagingBytes = std::int64_t{8} << 20;

// Touched of the stacks of a worker and of its allocations.
constexpr std::int64_t kBytesAThread = std::int64_t{192} << 10;

// Code, of the engine and its libraries, that a run meets after it has planned: kernels, the
// writers of checkpoints and metrics; 2.6 MB measured, with a disk.
constexpr std::int64_t kLateCodeBytes = std::int64_t{3} << 20;

// Of parts that a StateCursor has at hand, each of both halves.
constexpr auto kCursorBytes =
    static_cast<std::int64_t>(2 * kMostOpenParameters) * runtime::swap::kBlockBytes;

// Plans of a run that may ask for its budget anew: what lies outside the step grows with the nodes
// that make values again, a little each time. The next asks for what the last was too large, the
// one after it for twice that, and so on.
constexpr int kMostBudgetAttempts = 6;

std::int64_t round_to_pages(std::int64_t bytes) {
  return (bytes + kPageBytes - 1) / kPageBytes * kPageBytes;
}

std::int64_t arena_bytes(const lower::Compiled& compiled) {
  return compiled.plan.frame_bytes + compiled.plan.gradient_bytes + compiled.plan.input_bytes;
}

std::int64_t prepared_bytes(const lower::Compiled& compiled) {
  std::int64_t bytes = 0;
  for (const auto* all : {&compiled.program.calls, &compiled.program.first.calls})
    for (const auto& [action, calls] : *all)
      for (const runtime::Call& call : calls)
        bytes += static_cast<std::int64_t>(call.prepared.size());
  return bytes;
}

// What `graph` and its states take beside nodes. Experts of a stack are tensors of their own in
// files.
std::int64_t name_bytes(const lower::Compiled& compiled) {
  std::int64_t num_file_tensors = 0, num_on_disk = 0;
  for (const ir::State& state : compiled.graph.states)
    if (const TensorType& type = compiled.graph.value(state.before).type;
        state.kind == ir::StateKind::kParameter)
      num_file_tensors += type.ndim() == 3 ? type.dim(0) : 1;
  for (const runtime::StateSlot& slot : compiled.program.states) num_on_disk += slot.is_on_disk;
  return num_file_tensors * kBytesAFileTensor + num_on_disk * kBytesAStateOnDisk;
}

// States in the order in which a store meets them.
struct StateBytes {
  std::vector<std::int64_t> list;
  std::int64_t of_training = 0, of_others = 0;  // aligned
};

StateBytes state_bytes(const lower::Compiled& training, const lower::Compiled* evaluation) {
  StateBytes result;
  std::set<Name> seen;
  const auto add = [&](const lower::Compiled& compiled, std::int64_t& sum) {
    for (const runtime::StateSlot& slot : compiled.program.states) {
      if (slot.is_on_disk || !seen.insert(slot.name).second) continue;
      result.list.push_back(slot.type.num_bytes());
      sum += plan::align_bytes(result.list.back());
    }
  };
  add(training, result.of_training);
  if (evaluation) add(*evaluation, result.of_others);
  return result;
}

// Two steps ahead in the loader, one micro-batch of validation: five i32 arrays of the tokens each,
// the samples, and what a sample is read through.
std::int64_t batch_bytes(const RunConfig& run, bool has_evaluation) {
  const std::int64_t samples = run.train.micro_batch_size;
  const std::int64_t micro_batch = samples * (run.data.sequence_length * 5 * 4 + 8);
  const std::int64_t scratch = (run.data.sequence_length + 1) * (8 + 4);
  const std::int64_t validation = has_evaluation ? micro_batch + scratch : 0;
  return 2 * run.train.gradient_accumulation_steps * micro_batch + scratch + validation;
}

std::string row_line(const MemoryRow& row, std::int64_t total) {
  return fmt::format(
      "  {:<20} {:<24} {:>12} {:>5.1f} %\n", row.name, row.what, format_bytes(row.bytes),
      total > 0 ? 100.0 * static_cast<double>(row.bytes) / static_cast<double>(total) : 0.0);
}

}  // namespace

ModelSession::CompileRequest training_request(const RunConfig& run,
                                              const model::ModelConfig& config) {
  const auto micro_batches = static_cast<double>(run.train.gradient_accumulation_steps);
  return {.name = "training",
          .build = {.num_tokens = run.train.micro_batch_size * run.data.sequence_length,
                    .aux_loss_coef = config.router_aux_loss_coef,
                    .z_loss_coef = run.train.router_z_loss_coef,
                    .aux_loss_scale = 1.0 / micro_batches},
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
                 std::int64_t step_bytes, const spec::Decisions* replay) {
  const auto compile = [&](const ModelSession::CompileRequest& request,
                           const std::vector<runtime::StateSlot>& states) {
    lower::CompileOptions options = compile_options(run, request);
    for (const runtime::StateSlot& slot : states) {
      options.state_layouts[std::string(text(slot.name))] = slot.type.layout;
      if (slot.is_on_disk) options.states_on_disk.insert(std::string(text(slot.name)));
    }
    options.efficiency = efficiency_of(efficiency, run);
    if (replay && request.training) options.memory.replay = *replay;
    return lower::compile(model::build_graph(config, request.build), options, device);
  };
  ModelSession::CompileRequest training = training_request(run, config);
  training.budget_bytes = step_bytes;
  RunPlan result{.training = compile(training, {}), .step_bytes = step_bytes};
  if (run.data.validation.empty()) return result;
  result.evaluation = compile(evaluation_request(run), result.training.program.states);
  return result;
}

namespace {

// What a budget holds beside the step.
constexpr const char* kBesideStep = "code, libraries, batches, staging and validation";

std::string consumers_of(const RunPlan& plan) {
  return "; largest are " + plan::largest_consumers(plan.training.graph, plan.training.plan);
}

std::int64_t smallest_choice(const RunPlan& plan) {
  std::int64_t bytes = std::numeric_limits<std::int64_t>::max();
  for (const plan::PricedChoice& choice : plan.training.memory.choices)
    bytes = std::min(bytes, choice.bytes);
  return bytes;
}

// `plan`, or a faster one of a step that may take `room` bytes more: what lies outside the step may
// be less than the budget was split by.
RunPlan with_room(RunPlan plan, const RunConfig& run, const model::ModelConfig& config,
                  const spec::DeviceSpec& device, const plan::OpEfficiency& efficiency,
                  std::int64_t process_bytes, std::int64_t room) {
  try {
    RunPlan roomier = plan_run(run, config, device, efficiency, plan.step_bytes + room);
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

std::int64_t bytes_beside_disk() {
  return runtime::swap::kStagingBytes + kCursorBytes + kBytesAThread;
}

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
      if (result.step_bytes == 0 || room < smallest_choice(result)) return result;
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
      result = plan_run(run, config, device, efficiency, step_bytes);
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

std::int64_t MemoryAccount::bytes(std::string_view name) const {
  std::int64_t sum = 0;
  for (const MemoryRow& row : rows)
    if (row.name == name) sum += row.bytes;
  return sum;
}

MemoryAccount account_memory(const RunConfig& run, const lower::Compiled& training,
                             const lower::Compiled* evaluation, std::int64_t num_threads,
                             std::int64_t process_bytes) {
  MemoryAccount account{.step = plan::make_account(training.graph, training.plan)};
  const auto add = [&](std::string name, std::string what, std::int64_t bytes) {
    if (bytes == 0) return;
    account.peak_bytes += bytes;
    account.rows.push_back({std::move(name), std::move(what), bytes});
  };
  for (const plan::AccountRow& row : account.step.rows)
    add(std::string(plan::to_string(row.use)), row.what, row.bytes);

  const StateBytes states = state_bytes(training, evaluation);
  std::int64_t num_nodes = static_cast<std::int64_t>(
      training.graph.nodes.size() + (training.first ? training.first->graph.nodes.size() : 0));
  std::int64_t prepared = prepared_bytes(training), arenas = round_to_pages(arena_bytes(training));
  if (evaluation) {
    num_nodes += static_cast<std::int64_t>(evaluation->graph.nodes.size());
    prepared += prepared_bytes(*evaluation);
    arenas += round_to_pages(arena_bytes(*evaluation));
    add("validation", "arenas", arena_bytes(*evaluation));
    add("validation", "states", states.of_others);
  }
  add("batches", "", batch_bytes(run, evaluation != nullptr));
  add("staging", "import, checkpoint, export", kStagingBytes);
  const bool has_swap = !training.program.windows.empty();
  const spec::Decisions& decisions = training.memory.decisions;
  if (has_swap) add("staging", "states on disk", runtime::swap::kStagingBytes);
  if (decisions.masters_on_disk || decisions.parameters_on_disk)
    add("staging", "parameters on disk", kCursorBytes);
  add("programs", "graphs, plans, calls, names",
      num_nodes * kProgramBytesANode + 2 * prepared + name_bytes(training));
  const std::int64_t exact = states.of_training + states.of_others + arena_bytes(training) +
                             (evaluation ? arena_bytes(*evaluation) : 0);
  add("rounding", "blocks and pages", runtime::allocated_bytes(states.list) + arenas - exact);
  add("threads", "stacks", (num_threads + 1 + has_swap) * kBytesAThread);
  if (process_bytes > 0)
    add("code and libraries", "measured at start", process_bytes + kLateCodeBytes);
  return account;
}

std::string to_string(const MemoryAccount& account) {
  std::string out;
  for (const MemoryRow& row : account.rows) out += row_line(row, account.peak_bytes);
  out += row_line({"peak", "", account.peak_bytes}, account.peak_bytes);
  if (!account.step.peak_op.empty())
    out += fmt::format("  most is in use at call {}: {}\n", account.step.peak_position,
                       account.step.peak_op);
  return out;
}

std::string places_to_string(const plan::Account& account) {
  std::string out;
  for (const auto& [segment, bytes] : account.by_segment)
    out += row_line({"segment", segment, bytes}, account.peak_bytes);
  // In the order of layers, not of their names.
  std::vector<std::pair<std::string, std::int64_t>> layers(account.by_layer.begin(),
                                                           account.by_layer.end());
  std::sort(layers.begin(), layers.end(), [](const auto& a, const auto& b) {
    return a.first.size() != b.first.size() ? a.first.size() < b.first.size() : a.first < b.first;
  });
  for (const auto& [layer, bytes] : layers)
    out += row_line({"layer", layer.empty() ? "outside layers" : layer, bytes}, account.peak_bytes);
  return out;
}

plan::StepPrice price_run(const RunConfig& run, const lower::Compiled& training,
                          const spec::DeviceSpec& device, plan::OpEfficiency efficiency) {
  return lower::price_step(training, plan::with_peaks(device),
                           efficiency_of(std::move(efficiency), run),
                           run.train.gradient_accumulation_steps);
}

std::int64_t offloaded_bytes(const plan::Plan& plan) {
  std::int64_t bytes = 0;
  for (const plan::Offload& offload : plan.offloads)
    if (!offload.is_of_state()) bytes += offload.bytes;
  return bytes;
}

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
                      decisions.parameters_on_disk ? " and parameters"
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
