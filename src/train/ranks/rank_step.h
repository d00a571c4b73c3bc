// SPDX-License-Identifier: Apache-2.0
// One rank's part of a training step: its micro-batches, and what becomes of the model on all
// ranks. With one rank it is the whole step.
#pragma once
#include <cstdint>
#include <filesystem>
#include <functional>
#include <vector>

#include "anabatic/events.h"
#include "io/data/loader.h"
#include "train/checkpoint/checkpoint.h"
#include "train/evaluate.h"
#include "train/expert_balance.h"
#include "train/loss_scale/loss_scaler.h"
#include "train/model_session.h"
#include "train/ranks/comm_watch.h"
#include "train/ranks/expert_room.h"
#include "train/ranks/step_sums.h"
#include "train/run_config.h"

namespace anabatic::train {

struct StepHooks {
  std::function<void()> before_update{};  // before parameters change
  std::function<void()> after_norm{};  // the update has looked at it, and may have left all alone
};

class RankStep {
 public:
  // All of them outlive it. The scaler takes note of each step.
  RankStep(const RunConfig& run, ModelSession& session, BoundProgram& program, LossScaler& scaler,
           const runtime::RankContext& rank);

  // Throws InvalidArgument where a rank holds other values than the first one of a state that all
  // of them hold whole.
  void compare_states(std::int64_t first_step);

  // Whether the first rank goes on with this step. The others say whether they may: see
  // is_end_asked(). Until then they answer what the first one asks for.
  bool begin(std::int64_t step, bool goes_on);
  bool is_end_asked() const { return sums_.is_end_asked(); }  // by another rank

  // Validates with all ranks, before begin() of that step. Other ranks take part in their begin(),
  // with this evaluator.
  Evaluation validate(std::int64_t step, Evaluator& evaluator);
  void validate_with(Evaluator* evaluator) { evaluator_ = evaluator; }

  // Saves with all ranks (train/checkpoint/checkpoint.h), before begin() of that step.
  std::filesystem::path save(std::int64_t step, const CheckpointProgress& progress,
                             const Retention& retention);

  // Runs the step; metrics have its number and its learning rate. Fills losses, norm and tokens, of
  // all ranks, and what its exchanges take at this one. Throws MoreExpertRoom before it changes a
  // state: then the step is as good as not started.
  void run(const io::StepBatch& batch, StepMetrics& metrics, const StepHooks& hooks = {});

  bool has_parts() const { return has_parts_; }  // of a state, this rank, and not all of it

  const ExpertCounts& expert_counts() const { return expert_counts_; }  // of all ranks
  double flops() const { return flops_; }                               // likewise
  std::int32_t num_ranks() const { return sums_.num_ranks(); }

 private:
  // The first call of the step whose results are not finite, on any rank; what the first rank
  // finds.
  std::string first_overflow(const io::StepBatch& batch, const StepTotals& totals,
                             const StepNumbers& numbers);

  std::int64_t first_row_of(const io::StepBatch& batch) const;

  const RunConfig& run_;
  ModelSession& session_;
  BoundProgram& program_;
  LossScaler& scaler_;
  std::int64_t data_rank_;
  ExpertCounts expert_counts_;
  ExpertRoom expert_room_;
  std::vector<double> leaves_;  // sums of each leaf
  StepSums sums_;
  CommWatch watch_;
  std::uint64_t plan_hash_ = 0;
  Evaluator* evaluator_ = nullptr;
  bool has_parts_ = false;  // a state of which ranks hold parts
  double flops_ = 0;
};

}  // namespace anabatic::train
