// SPDX-License-Identifier: Apache-2.0
#include "train/checkpoint/preflight.h"

#include <sys/resource.h>
#include <sys/statvfs.h>

#include <algorithm>
#include <cerrno>
#include <cstring>

#include "base/error.h"
#include "base/log.h"
#include "base/text.h"
#include "train/record/windows_log.h"

namespace anabatic::train {
namespace {

// Bytes of a step's line and TensorBoard event; the line has some numbers for each layer.
constexpr std::int64_t kLogBytesOfStep = 700, kLogBytesOfLayer = 40, kLogBytesOfRank = 150;
constexpr std::int64_t kLogBytesOfInt8 = 250;  // two numbers of a step, in both files
// A run of more steps is often one that is meant to be stopped.
constexpr std::int64_t kMostLoggedSteps = 100'000;

}  // namespace

DiskRoom disk_room(const std::filesystem::path& directory) {
  struct statvfs space {};
  if (::statvfs(directory.c_str(), &space) != 0)
    throw ResourceError(fmt::format("[train] train.output: cannot read the free space of {}: {}",
                                    directory.string(), std::strerror(errno)));
  struct rlimit limit {};
  const bool is_limited = ::getrlimit(RLIMIT_FSIZE, &limit) == 0 && limit.rlim_cur != RLIM_INFINITY;
  return {.free_bytes =
              static_cast<std::int64_t>(space.f_bavail) * static_cast<std::int64_t>(space.f_frsize),
          .file_limit_bytes = is_limited ? static_cast<std::int64_t>(limit.rlim_cur) : 0};
}

std::int64_t most_new_checkpoints(const DiskNeed& need) {
  const std::int64_t next = std::min<std::int64_t>(need.num_saves, 1);
  if (need.keep_last == 0 || need.num_present >= need.keep_last) return next;
  return std::min(need.num_saves, need.keep_last + 1 - need.num_present);
}

void require_disk_room(const std::filesystem::path& directory, const DiskNeed& need,
                       const DiskRoom& room) {
  const std::int64_t count = most_new_checkpoints(need);
  if (count > 0 && room.file_limit_bytes > 0 && need.largest_file_bytes > room.file_limit_bytes)
    throw ResourceError(fmt::format(
        "[train] train.output: expected a limit of file sizes of at least {}, the largest file of "
        "a checkpoint, got {}; raise it with ulimit -f",
        format_bytes(need.largest_file_bytes), format_bytes(room.file_limit_bytes)));
  const std::int64_t needed = count * need.checkpoint_bytes + need.log_bytes;
  if (count > 0 && needed > room.free_bytes)
    throw ResourceError(fmt::format(
        "[train] train.output: expected {} free in {} for {} checkpoint{} of {} ({}) and {} of "
        "logs, got {}; free some, {}choose another train.output",
        format_bytes(needed), directory.string(), count, count == 1 ? "" : "s",
        format_bytes(need.checkpoint_bytes),
        need.keep_last > 0
            ? fmt::format("train.keep_last: {} and one that is being written", need.keep_last)
            : "the next one",
        format_bytes(need.log_bytes), format_bytes(room.free_bytes),
        need.keep_last > 1 ? "lower train.keep_last, or " : "or "));
  const std::int64_t all = need.num_saves * need.checkpoint_bytes + need.log_bytes;
  if (need.keep_last == 0 && all > room.free_bytes)
    log_warning(
        "[train] train.output: {} holds {} free bytes; all {} checkpoints of this run will "
        "take {} (train.keep_last: 0 keeps them all)",
        directory.string(), format_bytes(room.free_bytes), need.num_saves, format_bytes(all));
}

std::int64_t count_saves(std::int64_t first, std::int64_t last, std::int64_t save_every) {
  if (first > last) return 0;
  if (save_every <= 0) return 1;
  return last / save_every - (first - 1) / save_every + (last % save_every != 0 ? 1 : 0);
}

std::int64_t estimate_log_bytes(std::int64_t num_steps, std::int64_t num_layers,
                                std::int64_t num_experts, std::int64_t num_ranks,
                                std::int64_t num_int8_units) {
  return std::clamp<std::int64_t>(num_steps, 0, kMostLoggedSteps) *
             (kLogBytesOfStep + kLogBytesOfLayer * num_layers + kLogBytesOfRank * (num_ranks - 1) +
              (num_int8_units > 0 ? kLogBytesOfInt8 : 0)) +
         WindowsLog::estimate_bytes(num_steps, num_layers * num_experts, num_int8_units);
}

}  // namespace anabatic::train
