// SPDX-License-Identifier: Apache-2.0
// Finds the newest whole checkpoint of a directory, and why newer ones were skipped.
#pragma once
#include <filesystem>
#include <optional>
#include <string>
#include <vector>

#include "train/checkpoint/checkpoint_progress.h"

namespace anabatic::train {

// How much of a checkpoint is compared with its checksums.
enum class CheckpointDepth : std::uint8_t {
  kFiles,  // that the files are there and of the right size
  kAll     // every byte
};

struct FoundCheckpoint {
  std::filesystem::path directory;
  CheckpointProgress progress;
};

struct CheckpointSearch {
  std::optional<FoundCheckpoint> newest;
  bool holds_any = false;            // there are step-N directories, whole or not
  std::vector<std::string> remarks;  // what was skipped and why, a line each
};

// Searches the checkpoints of the run that began last, by descending step. OUTPUT/latest is not
// needed; a remark reports if it names another one.
CheckpointSearch find_newest_checkpoint(const std::filesystem::path& output, CheckpointDepth depth,
                                        int threads);

// What is wrong with a checkpoint, a line each; empty if it is whole.
std::vector<std::string> problems_of_checkpoint(const std::filesystem::path& checkpoint,
                                                CheckpointDepth depth, int threads);

// A model path as a user may give it. If `path` is the output directory of a run, logs and returns
// its newest whole checkpoint.
std::string model_path_of(const std::string& path);

}  // namespace anabatic::train
