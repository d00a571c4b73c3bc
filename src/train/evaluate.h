// SPDX-License-Identifier: Apache-2.0
// The loss of a model on held-out data.
#pragma once
#include <cstdint>
#include <limits>
#include <memory>

#include "anabatic/events.h"
#include "io/data/dataset.h"
#include "train/expert_balance.h"
#include "train/model_session.h"
#include "train/ranks/step_sums.h"

namespace anabatic::train {

using Evaluation = EvaluationSummary;

class Evaluator {
 public:
  // Binds a forward program of the run's micro-batch size. `dataset` must outlive the evaluator.
  Evaluator(ModelSession& session, const io::Dataset& dataset);

  // Every sample once, in order. InvalidArgument when the data has no unmasked token. With `sums`
  // ranks take turns at micro-batches, all of them at once; the result is that of one rank.
  // `most_samples`: of the first ones.
  Evaluation run(StepSums* sums = nullptr,
                 std::int64_t most_samples = std::numeric_limits<std::int64_t>::max());
  // How many updates the weights have had, for a program that makes them of a grid with a delay.
  void set_updates(std::int64_t updates);

  const lower::Compiled& compiled() const { return program_->compiled; }

 private:
  const io::Dataset& dataset_;
  std::int64_t micro_batch_size_;
  std::unique_ptr<BoundProgram> program_;
  io::MicroBatch batch_;
  io::SampleScratch scratch_;
  ExpertCounts expert_counts_;
};

// Runs the forward program of an evaluation; the loss, summed over the micro-batch's labels.
double summed_loss(BoundProgram& program, const io::MicroBatch& batch);

// Evaluates the model of run.model.path on run.data.validation.
Evaluation evaluate(const RunConfig& run);
// Evaluates the session's model: its current parameters, or those of run.model.path if it has none.
Evaluation evaluate(ModelSession& session);

}  // namespace anabatic::train
