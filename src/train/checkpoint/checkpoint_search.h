// SPDX-License-Identifier: Apache-2.0
// Which checkpoint of a directory is the newest that is whole, and why not a newer one.
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
  bool holds_any = false;            // step-N directories, whole or not
  std::vector<std::string> remarks;  // what was passed over and why, a line each
};

// Among the checkpoints of the run that began last, by descending step. OUTPUT/latest is not
// needed; a remark says where it names another one.
CheckpointSearch find_newest_checkpoint(const std::filesystem::path& output, CheckpointDepth depth,
                                        int threads);

// What is wrong with a checkpoint, a line each; empty: it is whole.
std::vector<std::string> problems_of_checkpoint(const std::filesystem::path& checkpoint,
                                                CheckpointDepth depth, int threads);

// `path`, or the newest whole checkpoint in it where it is the output directory of a run, and says
// which: what a user may name as a model.
std::string model_path_of(const std::string& path);

}  // namespace anabatic::train
