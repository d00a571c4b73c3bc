// SPDX-License-Identifier: Apache-2.0
// The choices of the planner for one program: a plain value that passes read and that prints.
#pragma once
#include <cstdint>
#include <map>
#include <optional>
#include <set>
#include <string>

namespace anabatic::spec {

// The form in which a value is saved for the backward.
enum class SavedForm : std::uint8_t {
  kWhole,
  kBFloat16,  // f32 rounded to nearest even
  kInt8,  // f32 or bf16 quantised by op `quantize`, blocks of kCompressionBlock elements of a row
  kDisk   // not in memory; op `reload` is where it is back
};
inline constexpr std::int64_t kCompressionBlock = 128;

// Positions of the plan's step between which a value on disk has no bytes in memory.
struct OffloadSpan {
  std::int32_t written_by = 0, read_at = 0;
  bool operator==(const OffloadSpan&) const = default;
};
using OffloadSpans = std::map<std::string, OffloadSpan, std::less<>>;

// What a micro-batch does not keep as it is.
struct MicroBatchDecisions {
  // Keys (analysis/rebuild.h) of forward values that the backward recomputes.
  std::set<std::string, std::less<>> recompute{};
  // Keys of values that are saved in another form; `recompute` has precedence. bf16 and int8 change
  // gradients.
  std::map<std::string, SavedForm, std::less<>> saved_as{};
  // Calls that run in so many slices (passes/decided/slice_calls.h), by key (analysis/slices.h).
  std::map<std::string, std::int64_t, std::less<>> slices{};

  bool operator==(const MicroBatchDecisions&) const = default;
};

struct Decisions : MicroBatchDecisions {
  // The first micro-batch's own decisions, where it can keep more than the others. It uses the
  // bytes of gradients that are not started yet (plan/first_micro_batch.h).
  std::optional<MicroBatchDecisions> first{};
  // Spans of values and parameters on disk, by key. One without a span is scheduled again.
  OffloadSpans offloads{};
  // Keep a second packing of every weight between steps. False: the backward makes it.
  bool pack_transposed = true;
  // Keep packings of weights between steps. False: forward and backward make them.
  bool keep_packings = true;
  // Norms and dropout that products apply (passes/norms/fuse_norm_linear.h), by the names of their
  // values.
  // None: those for which prices say so.
  std::optional<std::set<std::string, std::less<>>> norms_in_products{};
  bool state_on_disk = false;       // the optimizer's moments, between updates
  bool masters_on_disk = false;     // and the lower 16 bits of parameters
  bool parameters_on_disk = false;  // and the parameters that forward and backward read
  std::set<std::string, std::less<>> resident_parameters{};  // exceptions to parameters_on_disk
  std::int32_t num_windows = 0;  // for slices of states on disk; see plan/swap.h
  // Bytes of moments that stay in memory despite state_on_disk: those that are updated first.
  std::int64_t resident_bytes = 0;
  // Room for the rows that ranks send to each other's experts, as a multiple of an even share. 0:
  // for the most that can come.
  double expert_capacity = 0;

  bool operator==(const Decisions&) const = default;
};

}  // namespace anabatic::spec
