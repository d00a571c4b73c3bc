// SPDX-License-Identifier: Apache-2.0
// What deciders chose for one program: a plain value that passes read and that prints.
#pragma once
#include <cstdint>
#include <map>
#include <set>
#include <string>

namespace anabatic::spec {

// In what a value that the backward reads is kept; each allows those before it.
enum class Compression : std::uint8_t {
  kNone,
  kBFloat16,  // of f32, rounded to nearest even
  kInt8       // of f32 and bf16: op `quantize`, blocks of kCompressionBlock elements of a row
};
inline constexpr std::int64_t kCompressionBlock = 64;

struct Decisions {
  // Keys (analysis/rebuild.h) of forward values that the backward makes again instead of reading.
  std::set<std::string, std::less<>> recompute{};
  // Keys of those that are kept in fewer bytes; `recompute` goes ahead of it. Changes gradients.
  std::map<std::string, Compression, std::less<>> compress{};
  // A second packing of every weight stands between steps, rather than being made in the backward.
  bool pack_transposed = true;
  bool state_on_disk = false;    // the optimizer's moments, between updates
  std::int32_t num_windows = 0;  // of their slices, then; see plan/swap.h
  // Of those that stay in memory then all the same, the first to be updated.
  std::int64_t resident_bytes = 0;

  bool operator==(const Decisions&) const = default;
};

}  // namespace anabatic::spec
