// SPDX-License-Identifier: Apache-2.0
// How a run begins in its directory: as a new run, or from which checkpoint, and what the user must
// be told about it.
#pragma once
#include <filesystem>
#include <optional>
#include <string>
#include <vector>

#include "train/checkpoint/checkpoint_progress.h"
#include "train/run_config.h"

namespace anabatic::train {

struct RunStart {
  RunIdentity run;
  Json contents;                                    // of this run, for its checkpoints
  std::optional<std::filesystem::path> checkpoint;  // to resume from; none: a new run
  std::int64_t step = 0;                            // of that checkpoint
  Json measured;                                    // CheckpointProgress::measured of it
  Json loss_scale, adaptive;                        // likewise
  std::string saved_base;                           // what its adapter belongs to; "": none
  std::vector<std::string> messages;                // a line each
};

// For the owner of train.output (train/run_lock). Removes what an earlier run left, finds the
// newest whole checkpoint and compares what it was trained from with this run. A new run moves the
// logs of an earlier one to before-K/ and leaves its checkpoints. InvalidArgument if no checkpoint
// is whole, or the one found is of another run.
RunStart begin_run(const RunConfig& run);

}  // namespace anabatic::train
