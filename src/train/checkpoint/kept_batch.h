// SPDX-License-Identifier: Apache-2.0
// A run that goes on with another number of ranks keeps the samples of a step.
#pragma once
#include <cstdint>
#include <string>
#include <vector>

#include "train/run_config.h"

namespace anabatic::train {

struct KeptBatch {
  RunConfig run;
  std::vector<std::string> messages;  // what is not as the config says, a line each
};

// Where the newest checkpoint of train.output is of another number of ranks, and nobody has changed
// train.gradient_accumulation_steps since: with the micro-batches a rank that keep those of a step.
// With the checkpoint's train.gradient_leaves, where they are `auto` and ranks can share them: then
// sums keep their order. All else stays, and is for begin_run() to compare. Only reads.
KeptBatch keep_batch(RunConfig run);

// Micro-batches of a step on all ranks.
std::int64_t micro_batches_of_step(const RunConfig& run);
// In the tree that sums the gradients of a step.
std::int64_t gradient_leaves(const RunConfig& run);

}  // namespace anabatic::train
