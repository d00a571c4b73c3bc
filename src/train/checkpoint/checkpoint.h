// SPDX-License-Identifier: Apache-2.0
// A checkpoint: weights, config and tokenizer as Hugging Face loads them; the fp32 masters and
// moments; the step, which is the data cursor and the state of all randomness; the resolved run
// config.
#pragma once
#include <filesystem>

#include "train/checkpoint/checkpoint_directory.h"
#include "train/checkpoint/checkpoint_progress.h"
#include "train/model_session.h"

namespace anabatic::train {

// Writes OUTPUT/step-N durably with the checksums of its files, moves OUTPUT/latest and prunes;
// returns the directory. Streams from the live states.
std::filesystem::path save_checkpoint(const std::filesystem::path& output, ModelSession& session,
                                      const CheckpointProgress& progress,
                                      const Retention& retention);

// Fills parameters and moments of a checkpoint that was found whole (train/checkpoint_search).
// InvalidArgument listing every state that is missing, surplus or of another shape.
void load_checkpoint(const std::filesystem::path& directory, ModelSession& session);

// Bytes of a checkpoint of this session, and of its largest file.
struct CheckpointBytes {
  std::int64_t total = 0, largest_file = 0;
};
CheckpointBytes bytes_of_checkpoint(const ModelSession& session);

}  // namespace anabatic::train
