// SPDX-License-Identifier: Apache-2.0
#include "train/ranks/ranks.h"

#include <fmt/core.h>
#include <unistd.h>

#include <algorithm>
#include <utility>

#include "base/error.h"
#include "comm/local_transport.h"
#include "comm/paced_transport.h"
#include "device/cpu_limits.h"
#include "train/objective/run_model.h"

namespace anabatic::train {
namespace {

std::int64_t available_threads() { return device::cpu_limits().num_threads(); }

// A budget keeps the states of every rank in memory.
RunConfig with_resident_states(RunConfig run) {
  run.memory.optimizer_state = run.memory.masters = run.memory.parameters = "resident";
  return run;
}

}  // namespace

RunConfig of_one_thread(RunConfig run, std::int64_t shared_bytes) {
  if (num_ranks(run) == 1) return run;
  run = with_resident_states(std::move(run));
  const std::int64_t ranks = run.parallel.local_ranks;
  if (run.memory.budget > 0)
    run.memory.budget =
        shared_bytes + std::max<std::int64_t>(run.memory.budget - shared_bytes, 0) / ranks;
  const std::int64_t threads = run.device.threads > 0 ? run.device.threads : available_threads();
  run.device.threads = std::max<std::int64_t>(threads / ranks, 1);
  return run;
}

void require_supported_by_ranks(const RunConfig& run) {
  if (num_ranks(run) == 1) return;
  if (!run.sparsity.weights.empty())
    throw Unsupported(
        fmt::format("[ranks] sparsity.weights: expected one rank, got {}: ranks do not share masks",
                    num_ranks(run)));
  std::string refused;
  const auto refuse = [&](bool is_asked, std::string_view what) {
    if (is_asked) refused.append(refused.empty() ? "" : ", ").append(what);
  };
  refuse(run.memory.optimizer_state == "disk", "memory.optimizer_state: disk");
  refuse(run.memory.masters == "disk", "memory.masters: disk");
  refuse(run.memory.parameters == "disk", "memory.parameters: disk");
  refuse(run.memory.activations == "disk", "memory.activations: disk");
  refuse(!run.memory.cold.empty(), "memory.cold");
  refuse(!run.memory.plan.empty(), "memory.plan");
  refuse(run.optimizer.update == "in_backward" && run.parallel.optimizer == "sharded",
         "optimizer.update: in_backward (parallel.optimizer: replicated goes with it)");
  const bool shares_experts = run.parallel.expert > 1;
  refuse(shares_experts && run.optimizer.state_precision == "int8",
         "optimizer.state_precision: int8 with parallel.expert");
  if (!refused.empty())
    throw Unsupported(
        fmt::format("[ranks] expected a run whose states stay in memory, for {} ranks, got {}",
                    num_ranks(run), refused));
}

void require_supported_by_ranks(const RunConfig& run, const model::ModelConfig& config) {
  if (num_ranks(run) > 1 && !config.spec.mtp.empty())
    throw Unsupported(
        fmt::format("[ranks] expected a model without layers of multi-token prediction, for {} "
                    "ranks; model.keep_mtp: false leaves them out",
                    num_ranks(run)));
}

void require_one_rank(const RunConfig& run, std::string_view who) {
  if (run.parallel.local_ranks > 1)
    throw Unsupported(
        fmt::format("[{}] expected parallel.local_ranks: 1, got {}: only train knows several ranks",
                    who, run.parallel.local_ranks));
}

RunConfig of_processes(RunConfig run, std::int32_t num_processes) {
  ANABATIC_REQUIRE(run.parallel.local_ranks == 1 || run.parallel.local_ranks == num_processes,
                   "[ranks] parallel.local_ranks: expected 1, or {} as there are processes, got "
                   "{}: a process of "
                   "a launcher is one rank",
                   num_processes, run.parallel.local_ranks);
  run.parallel.local_ranks = num_processes;
  return run;
}

io::LoaderOptions loader_options(const RunConfig& run, const runtime::RankContext& rank) {
  return {.micro_batch_size = run.train.micro_batch_size,
          .accumulation_steps = run.train.gradient_accumulation_steps,
          .seed = static_cast<std::uint64_t>(run.train.seed),
          .shuffle = run.data.shuffle,
          .part = rank.rank(),
          .num_parts = rank.mesh.data};
}

Ranks::Ranks(const RunConfig& run, comm::MpiWorld* world) {
  require_supported_by_ranks(run);
  require_world(run, run.parallel.local_ranks);
  MeshLimits limits;
  if (run.parallel.expert > 1) limits.num_experts = model::num_experts(load_run_model(run).spec);
  mesh_ = mesh_of(run, limits);
  methods_ = method_policy(run, world != nullptr);
  if (mesh_.world() == 1) return;
  if (world != nullptr) {
    ANABATIC_CHECK(world->size() == mesh_.world(), "[ranks] {} processes, {} ranks", world->size(),
                   mesh_.world());
    num_on_node_ = world->num_on_node();
  } else {
    num_threads_ = num_on_node_ = mesh_.world();
  }
  const comm::CommunicatorOptions options{
      .patience_seconds = run.parallel.patience,
      .num_compute_threads = static_cast<int>(of_one(run, 0).device.threads)};
  std::vector<std::unique_ptr<comm::Transport>> transports;
  if (world != nullptr)
    transports.push_back(world->make_transport(
        {.packs_rows = mesh_.expert > 1, .groups = collective_groups(mesh_, world->rank())}));
  else
    transports = comm::local_transports(mesh_.world());
  const std::optional<spec::ClusterSpec> links = emulated_cluster(run);
  for (std::unique_ptr<comm::Transport>& transport : transports) {
    if (links) transport = comm::make_paced(std::move(transport), *links);
    communicators_.push_back(std::make_unique<comm::Communicator>(std::move(transport), options));
  }
}

Ranks::~Ranks() {
  if (!is_done_) abort(fmt::format("[ranks] rank {} ended before the run did", own().rank()));
}

runtime::RankContext Ranks::of_thread(std::int32_t thread) const {
  return {mesh_, communicators_.empty() ? nullptr
                                        : communicators_[static_cast<std::size_t>(thread)].get()};
}

RunConfig Ranks::of_one(RunConfig run, std::int64_t shared_bytes) const {
  if (mesh_.world() == 1) return run;
  if (num_threads_ > 1) return of_one_thread(std::move(run), shared_bytes);
  run = with_resident_states(std::move(run));
  // A launcher that binds processes has left each its own threads.
  const std::int64_t share =
      std::max<std::int64_t>(::sysconf(_SC_NPROCESSORS_ONLN) / num_on_node_, 1);
  if (run.device.threads == 0) run.device.threads = std::min(available_threads(), share);
  return run;
}

void Ranks::abort(const std::string& text) {
  for (const auto& communicator : communicators_) communicator->abort(text);
}

}  // namespace anabatic::train
