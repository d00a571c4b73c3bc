// SPDX-License-Identifier: Apache-2.0
// How a run begins in its directory: anew, or from which checkpoint, and what of it a user must
// know.
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
  std::optional<std::filesystem::path> checkpoint;  // to go on from; none: a fresh start
  std::int64_t step = 0;                            // of that checkpoint
  std::vector<std::string> messages;                // a line each
};

// For whom train.output belongs to (train/run_lock). Clears what an earlier run left behind, finds
// the newest whole checkpoint and compares what it was trained from with this run. A fresh start
// moves the logs of an earlier run to before-K/ and leaves its checkpoints. InvalidArgument when
// no checkpoint is whole, or the one found is of another run.
RunStart begin_run(const RunConfig& run);

}  // namespace anabatic::train
