// SPDX-License-Identifier: Apache-2.0
// Where buffers lie in an arena, from their sizes and lifetimes alone.
#pragma once
#include <cstdint>
#include <span>
#include <vector>

#include "analysis/liveness.h"

namespace anabatic::plan {

using analysis::LiveBytes;

struct Placement {
  std::vector<std::int64_t> offsets{};  // per item, multiples of 64
  std::int64_t bytes = 0;               // of the arena
};

// The largest item first (ties: longer lifetime, then lower index), each at the lowest offset that
// is free during its lifetime. O(n²) comparisons.
Placement place_by_size(std::span<const LiveBytes> items);

// Twin: one after the other, no byte used twice.
Placement place_in_sequence(std::span<const LiveBytes> items);

// Rounded up to the alignment of offsets.
std::int64_t align_bytes(std::int64_t bytes);

}  // namespace anabatic::plan
