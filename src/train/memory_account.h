// SPDX-License-Identifier: Apache-2.0
// Every byte that a planned run will hold: what its plans count, and what stands beside them.
#pragma once
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "anabatic/events.h"
#include "lower/compile.h"
#include "plan/account.h"
#include "train/run_config.h"

namespace anabatic::train {

// Import, checkpoint and export pass states through blocks of 2^18 elements, at most two of 4 bytes
// at a time: values as f32 and as the file has them, or a page of the file.
inline constexpr std::int64_t kStagingBytes = std::int64_t{2} << 20;

// Of a tensor of the model's files, beside its values: its spelling, shape, place and checksum in
// the weight map, and again in the header, the manifest and their text while files are read or
// written.
inline constexpr std::int64_t kBytesAFileTensor = 1152;

struct MemoryRow {
  std::string name;  // "parameters", "saved activations", "batches", ...
  std::string what;  // "f32 panels"; "" where the name says all
  std::int64_t bytes = 0;
};

// A process's resident bytes at their peak.
struct MemoryAccount {
  std::vector<MemoryRow> rows;  // sum to peak_bytes; none is 0
  std::int64_t peak_bytes = 0;
  plan::Account step;  // of the training program: layers, segments, the moment of the peak

  std::int64_t bytes(std::string_view name) const;  // of all rows of that name
  // What a byte budget of the process does not leave to the training program's states and arenas.
  std::int64_t beside_step() const { return peak_bytes - step.peak_bytes; }
};

// `process_bytes`: resident before the run's programs, states and arenas exist: code, libraries
// and, `data_bytes` of them, tokenizer and data. `evaluation` may be null.
MemoryAccount account_memory(const RunConfig& run, const lower::Compiled& training,
                             const lower::Compiled* evaluation, std::int64_t num_threads,
                             std::int64_t process_bytes, std::int64_t data_bytes = 0);

// What states on disk take beside the step: staging and their thread.
std::int64_t bytes_beside_disk();

// The rows of each name together, largest first.
std::vector<MemoryShare> shares(const MemoryAccount& account);

// One line a row, largest unit first, and the peak's moment: for people.
std::string to_string(const MemoryAccount& account);
// Bytes per layer and segment, likewise.
std::string places_to_string(const plan::Account& account);

}  // namespace anabatic::train
