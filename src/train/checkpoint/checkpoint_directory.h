// SPDX-License-Identifier: Apache-2.0
// Names and life of checkpoint directories: OUTPUT/step-00000100, built under a temporary name,
// renamed when durable; the text file OUTPUT/latest names the newest and moves last.
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

// The directory that OUTPUT/latest names; nullopt when there is no such file, or it names what is
// not there. What a run goes on from is chosen by train/checkpoint_search.
std::optional<std::filesystem::path> latest_checkpoint(const std::filesystem::path& output);

// Those of one run.
std::vector<NamedCheckpoint> checkpoints_of_run(const std::filesystem::path& output,
                                                const std::string& run_id);

struct Retention {
  std::int64_t keep_last = 0;      // checkpoints of this run; 0: all
  std::string run_id;              // those of other runs are never touched
  std::filesystem::path in_use{};  // a directory that stays in any case
};

// Lets `write` fill a fresh temporary directory, makes every file in it durable, renames it to
// OUTPUT/step-N, moves OUTPUT/latest, then removes all but the newest of this run. One of the same
// name is replaced, or set aside where it is another run's. Whatever fails or is killed on the
// way, OUTPUT/latest names a whole checkpoint; an error takes the temporary directory with it.
// Returns the final directory.
std::filesystem::path commit_checkpoint(
    const std::filesystem::path& output, std::int64_t step, const Retention& retention,
    const std::function<void(const std::filesystem::path&)>& write);

// What saves and writers that did not end have left in OUTPUT: removed, or put back where it
// belongs. Returns a line each. Only for whom the directory belongs to (train/run_lock).
std::vector<std::string> remove_leftovers(const std::filesystem::path& output);

// Moves a file or directory of OUTPUT to OUTPUT/before-K/, for the first K that has none of its
// name; returns where it lies.
std::filesystem::path set_aside(const std::filesystem::path& path);

}  // namespace anabatic::train
