// SPDX-License-Identifier: Apache-2.0
#include "plan/offsets.h"

#include <algorithm>
#include <numeric>

#include "plan/plan.h"

namespace anabatic::plan {

std::int64_t align_bytes(std::int64_t bytes) {
  return (bytes + kAlignmentBytes - 1) / kAlignmentBytes * kAlignmentBytes;
}

Placement place_by_size(std::span<const LiveBytes> items) {
  Placement result{std::vector<std::int64_t>(items.size(), 0)};
  std::vector<std::size_t> by_size(items.size());
  std::iota(by_size.begin(), by_size.end(), std::size_t{0});
  const auto length = [&](std::size_t i) {
    return items[i].lifetime.end - items[i].lifetime.begin;
  };
  std::stable_sort(by_size.begin(), by_size.end(), [&](std::size_t a, std::size_t b) {
    if (items[a].bytes != items[b].bytes) return items[a].bytes > items[b].bytes;
    return length(a) > length(b);
  });

  struct Placed {
    std::int64_t begin, end;
    Lifetime lifetime;
  };
  std::vector<Placed> placed;  // by begin
  for (std::size_t item : by_size) {
    const std::int64_t bytes = align_bytes(items[item].bytes);
    if (bytes == 0 || items[item].lifetime.empty()) continue;
    std::int64_t offset = 0;
    for (const Placed& other : placed) {
      if (other.begin >= offset + bytes) break;
      if (other.end > offset && other.lifetime.overlaps(items[item].lifetime)) offset = other.end;
    }
    result.offsets[item] = offset;
    result.bytes = std::max(result.bytes, offset + bytes);
    const auto position = std::upper_bound(
        placed.begin(), placed.end(), offset,
        [](std::int64_t value, const Placed& other) { return value < other.begin; });
    placed.insert(position, {offset, offset + bytes, items[item].lifetime});
  }
  return result;
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
