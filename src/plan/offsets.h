// SPDX-License-Identifier: Apache-2.0
// Offsets of buffers in an arena, from their sizes and lifetimes alone: the greedy placements. The
// search that improves on them is in offset_search.h.
#pragma once
#include <cstdint>
#include <span>
#include <vector>

#include "analysis/liveness.h"

namespace anabatic::plan {

using analysis::LiveBytes;

// Bytes that have an offset already.
struct FixedBytes {
  analysis::Lifetime lifetime{};
  std::int64_t offset = 0, bytes = 0;
};

struct Placement {
  std::vector<std::int64_t> offsets{};  // per item, multiples of the alignment (64)
  std::int64_t bytes = 0;               // of the arena
};

// Places items in this order, each at the lowest offset that is free during its lifetime. Items
// without bytes or lifetime are at 0. `bytes` of the items are multiples of the alignment. `fixed`
// do not overlap each other while alive; `bytes` of the arena does not include them. Adds the
// number of comparisons, at most n² without `fixed`, to *comparisons.
Placement place_in_order(std::span<const LiveBytes> items, std::span<const std::size_t> order,
                         std::int64_t* comparisons = nullptr,
                         std::span<const FixedBytes> fixed = {});

// The largest item first (ties: longer lifetime, then lower index).
std::vector<std::size_t> order_by_size(std::span<const LiveBytes> items);

// place_in_order, in order_by_size.
Placement place_by_size(std::span<const LiveBytes> items);

// Simple twin: one after the other, no byte used twice.
Placement place_in_sequence(std::span<const LiveBytes> items);

// Rounded up to the alignment of offsets.
std::int64_t align_bytes(std::int64_t bytes);

}  // namespace anabatic::plan
