// SPDX-License-Identifier: Apache-2.0
// What deciders chose for one program: a plain value that passes read and that prints.
#pragma once
#include <cstdint>
#include <map>
#include <optional>
#include <set>
#include <string>

namespace anabatic::spec {

// In what form a value that the backward reads waits for it.
enum class SavedForm : std::uint8_t {
  kWhole,
  kBFloat16,  // of f32, rounded to nearest even
  kInt8,      // of f32 and bf16: op `quantize`, blocks of kCompressionBlock elements of a row
  kDisk       // off memory: op `reload` stands where it is back
};
inline constexpr std::int64_t kCompressionBlock = 128;

// Positions of the plan's step between which a value that waits on disk has no bytes in memory.
struct OffloadSpan {
  std::int32_t written_by = 0, read_at = 0;
  bool operator==(const OffloadSpan&) const = default;
};
using OffloadSpans = std::map<std::string, OffloadSpan, std::less<>>;

// What forward and backward of a micro-batch do without.
struct MicroBatchDecisions {
  // Keys (analysis/rebuild.h) of forward values that the backward makes again instead of reading.
  std::set<std::string, std::less<>> recompute{};
  // Keys of those that wait in another form than whole; `recompute` goes ahead of it. Those of
  // fewer bits change gradients.
  std::map<std::string, SavedForm, std::less<>> saved_as{};
  // Calls that run in so many slices (passes/slice_calls.h), by key (analysis/slices.h).
  std::map<std::string, std::int64_t, std::less<>> slices{};

  bool operator==(const MicroBatchDecisions&) const = default;
};

struct Decisions : MicroBatchDecisions {
  // A step's first micro-batch, where it does without less than the others: it has the bytes of
  // gradients that are not begun (plan/first_micro_batch.h).
  std::optional<MicroBatchDecisions> first{};
  // Of values that wait on disk, by key, and of parameters that are; without one, it is timed anew.
  OffloadSpans offloads{};
  // A second packing of every weight stands between steps, rather than being made in the backward.
  bool pack_transposed = true;
  bool state_on_disk = false;       // the optimizer's moments, between updates
  bool masters_on_disk = false;     // and the lower halves of parameters
  bool parameters_on_disk = false;  // and what the model reads of them, between its readers
  std::set<std::string, std::less<>> resident_parameters{};  // but of these, then
  std::int32_t num_windows = 0;  // of their slices, then; see plan/swap.h
  // Of moments that stay in memory then all the same, the first to be updated.
  std::int64_t resident_bytes = 0;

  bool operator==(const Decisions&) const = default;
};

}  // namespace anabatic::spec
