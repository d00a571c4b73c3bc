// SPDX-License-Identifier: Apache-2.0
// The disk that a run may keep the optimizer's state on: whether there is one, and how fast it is.
#pragma once
#include <cstdint>
#include <filesystem>
#include <string>

#include "plan/prices.h"
#include "train/run_config.h"

namespace anabatic::runtime::swap {
class SwapSpace;
}

namespace anabatic::train {

// Where the run puts its scratch file: memory.swap_directory, or the directory of train.output.
std::filesystem::path swap_directory(const RunConfig& run);

struct SwapPlace {
  std::string refusal{};  // why the planner may not use it; empty: it may
  std::int64_t free_bytes = 0;
  std::filesystem::path
      directory{};  // an existing directory, at or above the one that was asked for
};
// For swap_directory(run), or the nearest directory above it that exists. Writes nothing.
SwapPlace find_swap_place(const RunConfig& run);

struct DiskMeasurement {
  plan::DiskSpeed speed{};
  std::string source;  // "measured", "default speed: ..." with the reason
  bool is_measured = false;
};
// Measured once for each file system and kept in $XDG_CACHE_HOME/anabatic. Never throws.
DiskMeasurement stored_disk_speed(const RunConfig& run);
// Stores a measurement for that directory; without a cache directory, does nothing.
void store_disk_speed(const std::filesystem::path& directory, const plan::DiskSpeed& speed);
// Writes and reads a scratch file in a fraction of a second, if the run may need the speed and none
// is stored. Failures leave the default.
void measure_disk_once(const RunConfig& run);

// The work of the disk so far: its rate while it moved data, and how long steps waited for it. ""
// of null.
std::string swap_to_string(const runtime::swap::SwapSpace* swap);

// Prices of calls and of the disk for `run`.
plan::OpEfficiency efficiency_of(plan::OpEfficiency efficiency, const RunConfig& run);

}  // namespace anabatic::train
