// SPDX-License-Identifier: Apache-2.0
// The loss of a model on held-out data.
#pragma once
#include <cstdint>
#include <memory>

#include "io/data/dataset.h"
#include "train/model_session.h"

namespace anabatic::train {

struct Evaluation {
  double loss = 0;        // mean over all unmasked tokens, nats
  double perplexity = 0;  // exp(loss)
  std::int64_t tokens = 0;
};

class Evaluator {
 public:
  // Binds a forward program of the run's micro-batch size. `dataset` must outlive the evaluator.
  Evaluator(ModelSession& session, const io::Dataset& dataset);

  // Every sample once, in order. InvalidArgument when the data has no unmasked token.
  Evaluation run();

  const lower::Compiled& compiled() const { return program_->compiled; }

 private:
  const io::Dataset& dataset_;
  std::int64_t micro_batch_size_;
  std::unique_ptr<BoundProgram> program_;
  io::MicroBatch batch_;
  io::SampleScratch scratch_;
};

// Of run.model.path on run.data.validation.
Evaluation evaluate(const RunConfig& run);

}  // namespace anabatic::train
