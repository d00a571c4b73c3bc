// SPDX-License-Identifier: Apache-2.0
// Offsets by search: greedy placements as incumbents, then branch and bound over canonical
// placements. Everything is a pure function of its input unless a clock is asked for.
#pragma once
#include <cstdint>
#include <limits>
#include <optional>
#include <span>

#include "plan/offsets.h"

namespace anabatic::plan {

struct SearchLimits {
  // Limit in touches of one item in one section: a nanosecond or two each. Plans depend on no other
  // limit.
  std::int64_t steps = std::int64_t{1} << 25;
  // place_by_search stops at an arena of (1 + slack) times the bound.
  double slack = 0;
  // Limit on a steady clock; 0: none. Never set in a plan, which must not depend on the machine.
  double seconds = 0;
};

// A small arena, with offsets and sizes in multiples of 64: never larger than place_by_size's,
// never below the most bytes alive at once. If the limits end the search, the best placement so
// far.
Placement place_by_search(std::span<const LiveBytes> items, const SearchLimits& limits = {});

struct Fit {
  std::optional<Placement> placement{};  // `bytes` <= capacity
  bool is_impossible = false;            // proven; if neither, the limits ended the search
};

// A placement inside `capacity` bytes; sizes count rounded up to the alignment. InvalidArgument
// when a size is negative, a lifetime ends before it begins, or the sum of sizes exceeds 2^62.
Fit place_within(std::span<const LiveBytes> items, std::int64_t capacity, std::int64_t alignment,
                 const SearchLimits& limits = {.steps = std::numeric_limits<std::int64_t>::max()});

}  // namespace anabatic::plan
