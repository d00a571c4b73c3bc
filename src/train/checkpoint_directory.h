// SPDX-License-Identifier: Apache-2.0
// Names and life of checkpoint directories: OUTPUT/step-00000100, built under a temporary name,
// renamed when durable; the text file OUTPUT/latest names the newest and moves last.
#pragma once
#include <cstdint>
#include <filesystem>
#include <functional>
#include <optional>
#include <vector>

namespace anabatic::train {

std::filesystem::path checkpoint_name(std::int64_t step);  // "step-00000100"

// The directory that OUTPUT/latest names; nullopt when there is no such file. InvalidArgument when
// it names what is not there.
std::optional<std::filesystem::path> latest_checkpoint(const std::filesystem::path& output);

// Lets `write` fill a fresh temporary directory, makes every file in it durable, renames it to
// OUTPUT/step-N (replacing one of the same name), moves OUTPUT/latest, then removes all but the
// newest `keep_last` (0: keeps all). Whatever fails or is killed on the way, OUTPUT/latest names a
// whole checkpoint. Returns the final directory.
std::filesystem::path commit_checkpoint(
    const std::filesystem::path& output, std::int64_t step, std::int64_t keep_last,
    const std::function<void(const std::filesystem::path&)>& write);

}  // namespace anabatic::train
