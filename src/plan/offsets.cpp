// SPDX-License-Identifier: Apache-2.0
#include "plan/offsets.h"

#include <algorithm>
#include <numeric>

#include "base/rounding.h"
#include "plan/plan.h"

namespace anabatic::plan {

std::int64_t align_bytes(std::int64_t bytes) { return round_up(bytes, kAlignmentBytes); }

Placement place_in_order(std::span<const LiveBytes> items, std::span<const std::size_t> order,
                         std::int64_t* comparisons, std::span<const FixedBytes> fixed) {
  Placement result{std::vector<std::int64_t>(items.size(), 0)};
  struct Placed {
    std::int64_t begin, end;
    Lifetime lifetime;
  };
  std::vector<Placed> placed;  // by begin
  placed.reserve(items.size() + fixed.size());
  const auto insert = [&](std::int64_t offset, std::int64_t bytes, Lifetime lifetime) {
    const auto position = std::upper_bound(
        placed.begin(), placed.end(), offset,
        [](std::int64_t value, const Placed& other) { return value < other.begin; });
    placed.insert(position, {offset, offset + bytes, lifetime});
  };
  for (const FixedBytes& other : fixed) insert(other.offset, other.bytes, other.lifetime);
  std::int64_t count = 0;
  for (std::size_t item : order) {
    const std::int64_t bytes = items[item].bytes;
    const Lifetime lifetime = items[item].lifetime;
    if (bytes == 0 || lifetime.empty()) continue;
    std::int64_t offset = 0;
    for (const Placed& other : placed) {
      ++count;
      if (other.begin >= offset + bytes) break;
      if (other.end > offset && other.lifetime.overlaps(lifetime)) offset = other.end;
    }
    result.offsets[item] = offset;
    result.bytes = std::max(result.bytes, offset + bytes);
    insert(offset, bytes, lifetime);
  }
  if (comparisons) *comparisons += count;
  return result;
}

std::vector<std::size_t> order_by_size(std::span<const LiveBytes> items) {
  std::vector<std::size_t> by_size(items.size());
  std::iota(by_size.begin(), by_size.end(), std::size_t{0});
  const auto length = [&](std::size_t i) {
    return items[i].lifetime.end - items[i].lifetime.begin;
  };
  std::stable_sort(by_size.begin(), by_size.end(), [&](std::size_t a, std::size_t b) {
    if (items[a].bytes != items[b].bytes) return items[a].bytes > items[b].bytes;
    return length(a) > length(b);
  });
  return by_size;
}

Placement place_by_size(std::span<const LiveBytes> items) {
  std::vector<LiveBytes> aligned(items.begin(), items.end());
  for (LiveBytes& item : aligned) item.bytes = align_bytes(item.bytes);
  return place_in_order(aligned, order_by_size(items));
}

Placement place_in_sequence(std::span<const LiveBytes> items) {
  Placement result{std::vector<std::int64_t>(items.size(), 0)};
  for (std::size_t i = 0; i < items.size(); ++i) {
    result.offsets[i] = result.bytes;
    result.bytes += align_bytes(items[i].bytes);
  }
  return result;
}

}  // namespace anabatic::plan
