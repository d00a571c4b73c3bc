// SPDX-License-Identifier: Apache-2.0
// Checkpoint directories: OUTPUT/step-00000100 is built under a temporary name and renamed when
// durable. The text file OUTPUT/latest names the newest and is updated last.
#pragma once
#include <cstdint>
#include <filesystem>
#include <functional>
#include <optional>
#include <string>
#include <vector>

namespace anabatic::train {

std::string checkpoint_name(std::int64_t step);  // "step-00000100"

// The step-N directories of OUTPUT by ascending step, whole or not.
struct NamedCheckpoint {
  std::int64_t step = 0;
  std::filesystem::path directory;
};
std::vector<NamedCheckpoint> named_checkpoints(const std::filesystem::path& output);

// The directory that OUTPUT/latest names. nullopt if there is no such file, or no such directory.
// train/checkpoint_search decides from which checkpoint a run resumes.
std::optional<std::filesystem::path> latest_checkpoint(const std::filesystem::path& output);

// The checkpoints of one run.
std::vector<NamedCheckpoint> checkpoints_of_run(const std::filesystem::path& output,
                                                const std::string& run_id);

struct Retention {
  std::int64_t keep_last = 0;      // checkpoints of this run; 0: all
  std::string run_id;              // checkpoints of other runs are never changed
  std::filesystem::path in_use{};  // a directory that is never removed
};

// Lets `write` fill a new temporary directory, makes every file in it durable, renames it to
// OUTPUT/step-N, updates OUTPUT/latest, then removes all but the newest of this run. A directory of
// the same name is replaced, or moved away if it is another run's. If any of this fails or is
// killed, OUTPUT/latest still names a whole checkpoint. An error removes the temporary directory.
// Returns the final directory.
std::filesystem::path commit_checkpoint(
    const std::filesystem::path& output, std::int64_t step, const Retention& retention,
    const std::function<void(const std::filesystem::path&)>& write);

// Removes or restores what unfinished saves and writers left in OUTPUT. Returns a line for each.
// Only for the owner of the directory (train/run_lock).
std::vector<std::string> remove_leftovers(const std::filesystem::path& output);

// Moves a file or directory of OUTPUT to OUTPUT/before-K/, for the first K without one of its name.
// Returns the new path.
std::filesystem::path set_aside(const std::filesystem::path& path);

}  // namespace anabatic::train
