// SPDX-License-Identifier: Apache-2.0
// Compares what a run will write into train.output with the free space, before its first step.
#pragma once
#include <cstdint>
#include <filesystem>

namespace anabatic::train {

struct DiskNeed {
  std::int64_t checkpoint_bytes = 0, largest_file_bytes = 0;
  std::int64_t num_saves = 0;    // that are still to come
  std::int64_t num_present = 0;  // checkpoints of this run that exist
  std::int64_t keep_last = 0;    // 0: all
  std::int64_t log_bytes = 0;
};

struct DiskRoom {
  std::int64_t free_bytes = 0;
  std::int64_t file_limit_bytes = 0;  // the largest file that this process may write; 0: any
};
DiskRoom disk_room(const std::filesystem::path& directory);

// The most checkpoints that exist in addition to those present: the one being written and those not
// pruned yet. With keep_last = 0 only the next one counts.
std::int64_t most_new_checkpoints(const DiskNeed& need);

// ResourceError with readable byte counts if there is not enough room. Warns a run that keeps all
// its checkpoints if they will not all fit.
void require_disk_room(const std::filesystem::path& directory, const DiskNeed& need,
                       const DiskRoom& room);

// Steps in [first, last] after which a run saves: multiples of save_every, and the last.
std::int64_t count_saves(std::int64_t first, std::int64_t last, std::int64_t save_every);
// Estimated bytes of metrics.jsonl, those of other ranks, TensorBoard events and windows.jsonl.
// `num_experts` is per layer, `num_int8_units` of the model: the weights that int8 products count.
std::int64_t estimate_log_bytes(std::int64_t num_steps, std::int64_t num_layers,
                                std::int64_t num_experts, std::int64_t num_ranks,
                                std::int64_t num_int8_units);

}  // namespace anabatic::train
