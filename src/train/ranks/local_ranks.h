// SPDX-License-Identifier: Apache-2.0
// The ranks of a run as threads of this process. The first one trains (train/trainer); the others
// follow it: they begin with its states, take their part of each step, and write no file.
#pragma once
#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <thread>
#include <vector>

#include "comm/communicator.h"
#include "io/data/loader.h"
#include "lower/compile.h"
#include "model/model.h"
#include "runtime/exchange_driver.h"
#include "train/run_config.h"

namespace anabatic::train {

// The mesh of a run: parallel.local_ranks along the data axis.
spec::Mesh mesh_of(const RunConfig& run);

// Throws Unsupported with the reason where the run asks for what several ranks cannot do yet.
void require_supported_by_ranks(const RunConfig& run);
// Likewise of the model.
void require_supported_by_ranks(const RunConfig& run, const model::ModelConfig& config);

// Throws Unsupported where the run has several ranks: `who`, such as "plan", knows one.
void require_one_rank(const RunConfig& run, std::string_view who);

// The config of one of the ranks: its share of the compute threads and of the memory that is left
// without `shared_bytes` under memory.budget.
RunConfig of_one_rank(RunConfig run, std::int64_t shared_bytes);

// Micro-batches of a step for a rank.
io::LoaderOptions loader_options(const RunConfig& run, const runtime::RankContext& rank);

// The communicators of all ranks. They outlive what exchanges.
class LocalRanks {
 public:
  explicit LocalRanks(const RunConfig& run);

  runtime::RankContext of(std::int32_t rank) const;
  runtime::RankContext first() const { return of(0); }

  // Ends the steps of all ranks with the text of an error: CommError from then on.
  void abort(const std::string& text);

 private:
  spec::Mesh mesh_;
  std::vector<std::unique_ptr<comm::Communicator>> communicators_;  // none: a single rank
};

// The threads of the other ranks.
class Followers {
 public:
  // `run` is that of one rank. They read `dataset`, and run a copy of `training`.
  Followers(LocalRanks& ranks, const RunConfig& run, const io::Dataset& dataset,
            const lower::Compiled& training, std::int64_t first_step);
  // Ends them, in the middle of a step if need be.
  ~Followers();
  Followers(const Followers&) = delete;
  Followers& operator=(const Followers&) = delete;

 private:
  LocalRanks& ranks_;
  std::vector<std::thread> threads_;
};

// Hash of what the ranks of a run have to agree on.
std::uint64_t hash_of(const lower::Compiled& training);

}  // namespace anabatic::train
