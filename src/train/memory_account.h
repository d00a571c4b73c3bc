// SPDX-License-Identifier: Apache-2.0
// Every byte that a planned run will hold: what its plans count, and what is outside of them.
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

// Import, checkpoint and export process states in blocks of 2^18 elements, at most two of 4 bytes
// at a time: values as f32 and as in the file, or a page of the file.
inline constexpr std::int64_t kStagingBytes = std::int64_t{2} << 20;

// Bytes for a tensor of the model's files, without its values. They are its name, shape, position
// and checksum in the weight map, and again in the header, the manifest and their text while files
// are read or written, and in the record of what was read.
inline constexpr std::int64_t kBytesAFileTensor = 1536;

// Code, of the engine and its libraries, that a run meets after it has planned: kernels, the
// writers of checkpoints and metrics; 2.6 MB measured, with a disk.
inline constexpr std::int64_t kLateCodeBytes = std::int64_t{3} << 20;

struct MemoryRow {
  std::string name;  // "parameters", "saved activations", "batches", ...
  std::string what;  // "f32 panels"; "" if the name says it all
  std::int64_t bytes = 0;
};

// A process's resident bytes at their peak.
struct MemoryAccount {
  std::vector<MemoryRow> rows;  // sum to peak_bytes; none is 0
  std::int64_t peak_bytes = 0;
  plan::Account step;  // of the training program: layers, segments, and when the peak is

  std::int64_t bytes(std::string_view name) const;  // of all rows of that name
  // The part of a process's budget that is not available to the training program.
  std::int64_t beside_step() const { return peak_bytes - step.peak_bytes; }
};

// `process_bytes`: resident before the run's programs, states and arenas exist: code, libraries,
// tokenizer and data, without kLateCodeBytes. `data_bytes` is the part of the latter two,
// `mpi_bytes` that of MPI with its buffers. `evaluation` may be null.
MemoryAccount account_memory(const RunConfig& run, const lower::Compiled& training,
                             const lower::Compiled* evaluation, std::int64_t num_threads,
                             std::int64_t process_bytes, std::int64_t data_bytes = 0,
                             std::int64_t mpi_bytes = 0);

// Adds what so many more ranks hold in the same process: each its states, arenas and batches.
void add_other_ranks(MemoryAccount& account, std::int64_t num_ranks);

// Memory for states on disk outside the step: staging buffers and their thread.
std::int64_t bytes_beside_disk();

// The rows of each name together, largest first.
std::vector<MemoryShare> shares(const MemoryAccount& account);

// One line for each row, largest unit first, and the time of the peak: for people.
std::string to_string(const MemoryAccount& account);
// Bytes per layer and segment, likewise.
std::string places_to_string(const plan::Account& account);

}  // namespace anabatic::train
