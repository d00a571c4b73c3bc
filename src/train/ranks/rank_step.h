// SPDX-License-Identifier: Apache-2.0
// One rank's part of a training step: its micro-batches, and what becomes of the model on all
// ranks. With one rank it is the whole step.
#pragma once
#include <cstdint>
#include <functional>
#include <optional>

#include "anabatic/events.h"
#include "io/data/loader.h"
#include "train/expert_balance.h"
#include "train/model_session.h"
#include "train/ranks/step_sums.h"
#include "train/run_config.h"

namespace anabatic::train {

struct StepHooks {
  std::function<void()> before_update{};  // before parameters change
  std::function<void()> after_norm{};  // the update has looked at it, and may have left all alone
};

class RankStep {
 public:
  // All of them outlive it.
  RankStep(const RunConfig& run, ModelSession& session, BoundProgram& program,
           const runtime::RankContext& rank);

  // All ranks begin with the first one's states of the training program.
  void share_states(std::int64_t first_step);

  // Whether the first rank goes on with this step. Others pass anything for `goes_on`.
  bool begin(std::int64_t step, bool goes_on);

  // Runs the step; metrics have its number and its learning rate. Fills losses, norm and tokens, of
  // all ranks.
  void run(const io::StepBatch& batch, StepMetrics& metrics, const StepHooks& hooks = {});

  const ExpertCounts& expert_counts() const { return expert_counts_; }  // of all ranks
  double flops() const { return flops_; }                               // likewise
  std::int32_t num_ranks() const { return sums_.num_ranks(); }

 private:
  const RunConfig& run_;
  ModelSession& session_;
  BoundProgram& program_;
  ExpertCounts expert_counts_;
  StepSums sums_;
  std::uint64_t plan_hash_ = 0;
  double flops_ = 0;
};

}  // namespace anabatic::train
