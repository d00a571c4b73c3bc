// SPDX-License-Identifier: Apache-2.0
#include "train/memory_account.h"

#include <fmt/core.h>

#include <algorithm>
#include <set>
#include <utility>

#include "base/rounding.h"
#include "base/text.h"
#include "plan/offsets.h"
#include "runtime/state_store.h"
#include "runtime/swap/swap_space.h"
#include "train/expert_balance.h"
#include "train/sparsity/sparse_weights.h"
#include "train/state_tiers.h"

namespace anabatic::train {
namespace {

constexpr std::int64_t kPageBytes = 4096;

// Nodes, values, buffers and calls with their operands, names and attributes, measured on graphs of
// 400 to 3,000 nodes: between 2.0 and 2.9 KiB a node.
constexpr std::int64_t kProgramBytesANode = 3072;

// Regions, windows, points and slots of a state on disk.
constexpr std::int64_t kBytesAStateOnDisk = 1024;

// Touched of the stacks of a worker and of its allocations.
constexpr std::int64_t kBytesAThread = std::int64_t{192} << 10;

// Buffers for the parts that a StateCursor has loaded: upper and lower 16 bits of each.
constexpr auto kCursorBytes =
    static_cast<std::int64_t>(2 * kMostOpenParameters) * runtime::swap::kBlockBytes;

std::int64_t arena_bytes(const lower::Compiled& compiled) {
  return compiled.plan.frame_bytes + compiled.plan.gradient_bytes + compiled.plan.input_bytes;
}

std::int64_t prepared_bytes(const lower::Compiled& compiled) {
  std::int64_t bytes = 0;
  for (const runtime::Call& call : compiled.program.calls)
    bytes += static_cast<std::int64_t>(call.prepared.size());
  return bytes;
}

// Bytes of `graph` and its states in addition to nodes. In files each expert of a stack is a
// separate tensor.
std::int64_t name_bytes(const lower::Compiled& compiled) {
  std::int64_t num_file_tensors = 0, num_on_disk = 0;
  for (const ir::State& state : compiled.graph.states)
    if (const TensorType& type = compiled.graph.value(state.before).type;
        state.kind() == ir::StateKind::kParameter)
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

// Two steps in the loader, one micro-batch of validation: six i32 arrays of the tokens each, their
// weights where they have any, completions and reference of pairs, the samples, and what a sample
// is read through.
std::int64_t batch_bytes(const RunConfig& run, bool has_evaluation) {
  const std::int64_t samples = run.train.micro_batch_size;
  const std::int64_t arrays = trains_on_pairs(run) ? 9 : trains_on_rows(run) ? 7 : 6;
  const std::int64_t micro_batch = samples * (run.data.sequence_length * arrays * 4 + 8);
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

std::int64_t MemoryAccount::bytes(std::string_view name) const {
  std::int64_t sum = 0;
  for (const MemoryRow& row : rows)
    if (row.name == name) sum += row.bytes;
  return sum;
}

MemoryAccount account_memory(const RunConfig& run, const lower::Compiled& training,
                             const lower::Compiled* evaluation, std::int64_t num_threads,
                             std::int64_t process_bytes, std::int64_t data_bytes,
                             std::int64_t mpi_bytes) {
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
  std::int64_t prepared = prepared_bytes(training),
               arenas = round_up(arena_bytes(training), kPageBytes);
  if (evaluation) {
    num_nodes += static_cast<std::int64_t>(evaluation->graph.nodes.size());
    prepared += prepared_bytes(*evaluation);
    arenas += round_up(arena_bytes(*evaluation), kPageBytes);
    add("validation", "arenas", arena_bytes(*evaluation));
    add("validation", "states", states.of_others);
  }
  add("batches", "", batch_bytes(run, evaluation != nullptr));
  add("metrics", "tokens of experts", ExpertHistory::num_bytes(training.graph));
  add("staging", "import, checkpoint, export", kStagingBytes);
  add("staging", "masks that are chosen", choice_bytes(training.graph, num_threads));
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
  add("data and tokenizer", "measured at start", data_bytes);
  add("MPI", "library and buffers", mpi_bytes);
  if (process_bytes > 0)
    add("code and libraries", "measured at start",
        process_bytes - data_bytes - mpi_bytes + kLateCodeBytes);
  return account;
}

void add_other_ranks(MemoryAccount& account, std::int64_t num_ranks) {
  const std::set<std::string, std::less<>> of_process{"code and libraries", "data and tokenizer",
                                                      "staging", "validation"};
  std::int64_t of_rank = 0;
  for (const MemoryRow& row : account.rows)
    if (!of_process.contains(row.name)) of_rank += row.bytes;
  if (num_ranks == 0) return;
  account.rows.push_back(
      {"other ranks", fmt::format("{} like this one", num_ranks), num_ranks * of_rank});
  account.peak_bytes += num_ranks * of_rank;
}

std::int64_t bytes_beside_disk() {
  return runtime::swap::kStagingBytes + kCursorBytes + kBytesAThread;
}

std::vector<MemoryShare> shares(const MemoryAccount& account) {
  std::vector<MemoryShare> result;
  for (const MemoryRow& row : account.rows) {
    const auto known = std::find_if(result.begin(), result.end(), [&](const MemoryShare& share) {
      return share.name == row.name;
    });
    if (known != result.end())
      known->bytes += row.bytes;
    else
      result.push_back({row.name, row.bytes});
  }
  std::stable_sort(result.begin(), result.end(),
                   [](const MemoryShare& a, const MemoryShare& b) { return a.bytes > b.bytes; });
  return result;
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

}  // namespace anabatic::train
