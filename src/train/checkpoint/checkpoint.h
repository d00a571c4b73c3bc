// SPDX-License-Identifier: Apache-2.0
// A checkpoint: weights, config and tokenizer as Hugging Face loads them, or an adapter as PEFT
// does; fp32 parameters that are trained, and moments; the resolved run config; and the step, which
// determines the position in the data and all random numbers.
#pragma once
#include <filesystem>
#include <functional>

#include "io/checksums.h"
#include "train/checkpoint/boxes.h"
#include "train/checkpoint/checkpoint_directory.h"
#include "train/checkpoint/checkpoint_progress.h"
#include "train/model_session.h"

namespace anabatic::train {

// Writes weights and boxes into a directory with all ranks (train/ranks/shared_save.h). Returns the
// checksums of these files, which are durable then.
using SharedWrite = std::function<io::ChecksumManifest(const std::filesystem::path& directory,
                                                       const BoxMap& boxes)>;

// Writes OUTPUT/step-N durably with the checksums of its files, updates OUTPUT/latest and prunes
// old checkpoints; returns the directory. Writes from the states without a copy. Without
// `write_shared` this rank writes all, and has to hold all.
std::filesystem::path save_checkpoint(const std::filesystem::path& output, ModelSession& session,
                                      const CheckpointProgress& progress,
                                      const Retention& retention,
                                      const SharedWrite& write_shared = {});

// Fills parameters and moments from a checkpoint that was found whole (train/checkpoint_search),
// of any number of ranks: what this rank holds of them. InvalidArgument listing every state that is
// missing, unexpected or of another shape.
void load_checkpoint(const std::filesystem::path& directory, ModelSession& session);

// Bytes of a checkpoint of this session, and of its largest file.
struct CheckpointBytes {
  std::int64_t total = 0, largest_file = 0;
};
CheckpointBytes bytes_of_checkpoint(const ModelSession& session);

}  // namespace anabatic::train
