// SPDX-License-Identifier: Apache-2.0
// The ranks of a run: threads of this process, or processes of a launcher. The first one trains
// (train/trainer); the others follow it (train/ranks/follower.h).
#pragma once
#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "comm/communicator.h"
#include "comm/mpi_world.h"
#include "io/data/loader.h"
#include "model/model.h"
#include "runtime/exchange_driver.h"
#include "train/ranks/exchange_methods.h"
#include "train/ranks/run_mesh.h"
#include "train/run_config.h"

namespace anabatic::train {

// Throws Unsupported with the reason where the run asks for what several ranks cannot do yet.
void require_supported_by_ranks(const RunConfig& run);
// Likewise of the model.
void require_supported_by_ranks(const RunConfig& run, const model::ModelConfig& config);

// Throws Unsupported where the run has several ranks: `who`, such as "plan", knows one.
void require_one_rank(const RunConfig& run, std::string_view who);

// The config of one rank, of those that are threads of a process. They share memory.budget, but for
// `shared_bytes`, and compute threads evenly.
RunConfig of_one_thread(RunConfig run, std::int64_t shared_bytes);

// The run of a process of a launcher: parallel.local_ranks becomes their number, so that a
// checkpoint says how many ranks there were. InvalidArgument where the run asks for another one.
RunConfig of_processes(RunConfig run, std::int32_t num_processes);

// Micro-batches of a step for a rank.
io::LoaderOptions loader_options(const RunConfig& run, const runtime::RankContext& rank);

// The communicators of the ranks in this process. They outlive what exchanges.
class Ranks {
 public:
  // All of them are threads of this process, unless `world` is given: then this process is one.
  explicit Ranks(const RunConfig& run, comm::MpiWorld* world = nullptr);
  // Ends the steps of all ranks, unless they are at their end.
  ~Ranks();
  Ranks(const Ranks&) = delete;
  Ranks& operator=(const Ranks&) = delete;

  // The rank of this process, the first of its threads.
  runtime::RankContext own() const { return of_thread(0); }
  runtime::RankContext of_thread(std::int32_t thread) const;
  std::int32_t num_threads() const { return num_threads_; }  // that are ranks
  std::int32_t num_on_node() const { return num_on_node_; }  // ranks that share this machine

  // How these ranks exchange, by what this machine has measured.
  const MethodPolicy& methods() const { return methods_; }

  // The config of one rank. A process has memory.budget and compute threads for itself: of threads
  // that nobody set, its node's share.
  RunConfig of_one(RunConfig run, std::int64_t shared_bytes) const;

  // Ends the steps of all ranks with the text of an error: CommError from then on.
  void abort(const std::string& text);
  // All ranks have heard that there is no other step.
  void done() { is_done_ = true; }

 private:
  spec::Mesh mesh_;
  MethodPolicy methods_;
  std::int32_t num_threads_ = 1, num_on_node_ = 1;
  bool is_done_ = false;
  std::vector<std::unique_ptr<comm::Communicator>> communicators_;  // none: a single rank
};

}  // namespace anabatic::train
