// SPDX-License-Identifier: Apache-2.0
#include "train/ranks/local_ranks.h"

#include <fmt/core.h>

#include <algorithm>
#include <array>
#include <exception>

#include "base/error.h"
#include "base/log.h"
#include "base/philox.h"
#include "comm/local_transport.h"
#include "device/cpu_limits.h"
#include "spec/mesh_request.h"
#include "train/model_session.h"
#include "train/ranks/rank_step.h"
#include "train/schedule.h"

namespace anabatic::train {
namespace {

// Between steps a rank waits as long as the first one validates or saves. A thread that fails
// aborts the others, so no wait is for a rank that is gone.
constexpr double kPatienceSeconds = 1e9;

void follow(const RunConfig& run, const io::Dataset& dataset, lower::Compiled training,
            const runtime::RankContext& rank, std::int64_t first_step) {
  const LogScope silence([](Severity, const std::string&) {});  // the first rank says it all
  ModelSession session(run, false, {}, rank);
  const std::unique_ptr<BoundProgram> program = session.bind(std::move(training));
  RankStep steps(run, session, *program, rank);
  steps.share_states(first_step);
  io::Loader loader(dataset, loader_options(run, rank));
  for (std::int64_t step = first_step; steps.begin(step, true); ++step) {
    StepMetrics metrics{.step = step};
    metrics.learning_rate = learning_rate(run.optimizer, step, run.train.steps);
    steps.run(loader.load_step(step - 1), metrics);
  }
}

}  // namespace

spec::Mesh mesh_of(const RunConfig& run) {
  return spec::mesh_of({.world = static_cast<std::int32_t>(run.parallel.local_ranks)});
}

void require_supported_by_ranks(const RunConfig& run) {
  if (run.parallel.local_ranks == 1) return;
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
  if (!refused.empty())
    throw Unsupported(fmt::format(
        "[ranks] expected a run whose states stay in memory, for parallel.local_ranks: {}, got {}",
        run.parallel.local_ranks, refused));
}

void require_supported_by_ranks(const RunConfig& run, const model::ModelConfig& config) {
  if (run.parallel.local_ranks > 1 && !config.spec.mtp.empty())
    throw Unsupported(
        fmt::format("[ranks] expected a model without layers of multi-token prediction, for "
                    "parallel.local_ranks: {}; model.keep_mtp: false leaves them out",
                    run.parallel.local_ranks));
}

void require_one_rank(const RunConfig& run, std::string_view who) {
  if (run.parallel.local_ranks > 1)
    throw Unsupported(
        fmt::format("[{}] expected parallel.local_ranks: 1, got {}: only train knows several ranks",
                    who, run.parallel.local_ranks));
}

RunConfig of_one_rank(RunConfig run, std::int64_t shared_bytes) {
  const std::int64_t ranks = run.parallel.local_ranks;
  if (ranks == 1) return run;
  if (run.memory.budget > 0)
    run.memory.budget =
        shared_bytes + std::max<std::int64_t>(run.memory.budget - shared_bytes, 0) / ranks;
  // A budget keeps the states of every rank in memory.
  run.memory.optimizer_state = run.memory.masters = run.memory.parameters = "resident";
  const std::int64_t threads =
      run.device.threads > 0 ? run.device.threads : device::cpu_limits().num_threads();
  run.device.threads = std::max<std::int64_t>(threads / ranks, 1);
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

std::uint64_t hash_of(const lower::Compiled& training) {
  return stream_of(runtime::print(training.program));
}

LocalRanks::LocalRanks(const RunConfig& run) {
  require_supported_by_ranks(run);
  mesh_ = mesh_of(run);
  if (mesh_.world() == 1) return;
  const auto threads = static_cast<int>(of_one_rank(run, 0).device.threads);
  for (std::unique_ptr<comm::Transport>& transport : comm::local_transports(mesh_.world()))
    communicators_.push_back(std::make_unique<comm::Communicator>(
        std::move(transport), comm::CommunicatorOptions{.patience_seconds = kPatienceSeconds,
                                                        .num_compute_threads = threads}));
}

runtime::RankContext LocalRanks::of(std::int32_t rank) const {
  return {mesh_,
          communicators_.empty() ? nullptr : communicators_[static_cast<std::size_t>(rank)].get()};
}

void LocalRanks::abort(const std::string& text) {
  for (const auto& communicator : communicators_) communicator->abort(text);
}

Followers::Followers(LocalRanks& ranks, const RunConfig& run, const io::Dataset& dataset,
                     const lower::Compiled& training, std::int64_t first_step)
    : ranks_(ranks) {
  for (std::int32_t rank = 1; rank < ranks.first().mesh.world(); ++rank)
    threads_.emplace_back([=, context = ranks.of(rank), &dataset, copy = training]() mutable {
      try {
        follow(run, dataset, std::move(copy), context, first_step);
      } catch (const std::exception& error) {
        context.communicator->abort(fmt::format("rank {}: {}", rank, error.what()));
      }
    });
}

Followers::~Followers() {
  if (!threads_.empty()) ranks_.abort("the first rank ended");
  for (std::thread& thread : threads_) thread.join();
}

}  // namespace anabatic::train
