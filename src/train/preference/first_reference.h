// SPDX-License-Identifier: Apache-2.0
// The reference at the start of a run of pairs: its log-probabilities next to the data, compared
// with what the first step computes.
#pragma once
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "io/data/loader.h"
#include "train/checkpoint/run_start.h"
#include "train/preference/reference.h"

namespace anabatic::train {

class FirstReference {
 public:
  using Say = std::function<void(const std::string&)>;

  // `validation` may be null. All of them outlive it.
  FirstReference(const RunConfig& run, const RunStart& start, io::Dataset& dataset,
                 io::Dataset* validation, const runtime::RankContext& rank, Say say);

  // Whether the reference is the model as the run found it, without its adapter.
  bool is_start() const;
  // Another model's, where dpo.reference names one, before the run's own states take memory.
  // Returns the name of its weights; "": there is none.
  std::string take_other(const model::ModelConfig& config);
  void take(Reference& reference);

  // What the first step reads of the reference is what the reference says of that step, and of a
  // policy that is still the reference no pair has a margin. InternalError otherwise. Afterwards
  // there is nothing left to check.
  void check(BoundProgram& program, const io::StepBatch& batch);

 private:
  bool has_steps() const;
  // A run that was complete validates once more.
  bool is_read() const;

  const RunConfig& run_;
  const RunStart& start_;
  io::Dataset& dataset_;
  io::Dataset* validation_;
  runtime::RankContext rank_;
  Say say_;
  // For each micro-batch of the first step, in its own packing.
  std::vector<std::vector<float>> own_;
};

}  // namespace anabatic::train
