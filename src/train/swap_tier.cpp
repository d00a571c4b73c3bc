// SPDX-License-Identifier: Apache-2.0
#include "train/swap_tier.h"

#include <fmt/core.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <sys/vfs.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>

#include "base/environment.h"
#include "base/error.h"
#include "base/json.h"
#include "base/text.h"
#include "runtime/swap/swap_probe.h"
#include "runtime/swap/swap_space.h"

namespace anabatic::train {
namespace {

namespace fs = std::filesystem;

constexpr std::int64_t kMostSpeedBytes = 4096;
constexpr std::int64_t kProbeBytes = std::int64_t{64} << 20;
constexpr long kMemoryFileSystem = 0x01021994;  // TMPFS_MAGIC of linux/magic.h

fs::path nearest_existing(fs::path directory) {
  std::error_code error;
  directory = fs::absolute(directory, error);
  while (!fs::exists(directory, error) && directory.has_parent_path() &&
         directory != directory.parent_path())
    directory = directory.parent_path();
  return directory;
}

// By file system: its device number.
fs::path speed_file(const fs::path& directory) {
  const std::string cache = environment::cache_directory();
  struct stat status {};
  if (cache.empty() || ::stat(nearest_existing(directory).c_str(), &status) != 0) return {};
  return fs::path(cache) / "anabatic" / fmt::format("disk-{:x}.json", status.st_dev);
}

DiskMeasurement read_speed(const fs::path& directory) {
  const fs::path file = speed_file(directory);
  std::error_code error;
  if (file.empty() || !fs::exists(file, error))
    return {.source = "default speed: this disk is not measured"};
  const Json json = try_parse_json(read_file(file, kMostSpeedBytes));
  const plan::DiskSpeed speed{positive_number(json, "read_bytes_per_second"),
                              positive_number(json, "written_bytes_per_second")};
  if (speed.read_bytes_per_second == 0 || speed.written_bytes_per_second == 0)
    return {.source = fmt::format("default speed: {} is no measurement", file.string())};
  return {speed, "measured", true};
}

bool may_use_disk(const RunConfig& run) {
  return run.memory.optimizer_state == "disk" || run.memory.activations == "disk" ||
         !run.memory.cold.empty() ||
         (run.memory.optimizer_state == "auto" && run.memory.budget > 0);
}

}  // namespace

fs::path swap_directory(const RunConfig& run) {
  if (!run.memory.swap_directory.empty()) return run.memory.swap_directory;
  return run.train.output.empty() ? fs::temp_directory_path() : fs::path(run.train.output);
}

SwapPlace find_swap_place(const RunConfig& run) {
  const fs::path directory = nearest_existing(swap_directory(run));
  const auto refuse = [&](const std::string& why) {
    return SwapPlace{fmt::format("{} {} (memory.swap_directory)", directory.string(), why)};
  };
  if (::access(directory.c_str(), W_OK | X_OK) != 0)
    return refuse(fmt::format("cannot be written to: {}", std::strerror(errno)));
  struct statfs system {};
  struct statvfs space {};
  if (::statfs(directory.c_str(), &system) != 0 || ::statvfs(directory.c_str(), &space) != 0)
    return refuse(
        fmt::format("has a file system that cannot be queried: {}", std::strerror(errno)));
  if (system.f_type == kMemoryFileSystem) return refuse("is in memory (tmpfs)");
  return {.free_bytes =
              static_cast<std::int64_t>(space.f_bavail) * static_cast<std::int64_t>(space.f_frsize),
          .directory = directory};
}

DiskMeasurement stored_disk_speed(const RunConfig& run) {
  try {
    return read_speed(swap_directory(run));
  } catch (const std::exception& error) {
    return {.source = fmt::format("default speed: {}", error.what())};
  }
}

void store_disk_speed(const fs::path& directory, const plan::DiskSpeed& speed) {
  const fs::path file = speed_file(directory);
  if (file.empty()) return;
  std::error_code ignored;
  fs::create_directories(file.parent_path(), ignored);
  const OrderedJson json{{"read_bytes_per_second", speed.read_bytes_per_second},
                         {"written_bytes_per_second", speed.written_bytes_per_second}};
  write_file_atomically(file, dump_json(json, 2) + "\n");
}

void measure_disk_once(const RunConfig& run) {
  if (!may_use_disk(run) || stored_disk_speed(run).is_measured ||
      !find_swap_place(run).refusal.empty())
    return;
  try {
    const fs::path directory = nearest_existing(swap_directory(run));
    const auto probe = runtime::swap::probe_swap({.directory = directory}, kProbeBytes);
    store_disk_speed(directory, {probe.read_bytes_per_second, probe.written_bytes_per_second});
  } catch (const Error&) {  // the default stays
  }
}

std::string swap_to_string(const runtime::swap::SwapSpace* swap) {
  if (swap == nullptr) return "";
  const runtime::swap::SwapStats stats = swap->stats();
  const std::int64_t bytes = stats.read_bytes + stats.written_bytes;
  const double busy = 1e-9 * static_cast<double>(stats.busy_nanoseconds);
  return fmt::format("{} read, {} written at {:.2f} GB/s; waited {:.1f} s for it",
                     format_bytes(stats.read_bytes), format_bytes(stats.written_bytes),
                     busy > 0 ? 1e-9 * static_cast<double>(bytes) / busy : 0.0,
                     1e-9 * static_cast<double>(stats.waited_nanoseconds));
}

plan::OpEfficiency efficiency_of(plan::OpEfficiency efficiency, const RunConfig& run) {
  efficiency.sequence_length = run.data.sequence_length;
  efficiency.disk = stored_disk_speed(run).speed;
  return efficiency;
}

}  // namespace anabatic::train
