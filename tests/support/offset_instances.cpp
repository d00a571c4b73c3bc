// SPDX-License-Identifier: Apache-2.0
#include "support/offset_instances.h"

#include <fmt/core.h>

#include <algorithm>

#include "base/philox.h"

namespace anabatic::testing {

using analysis::LiveBytes;

std::vector<LiveBytes> cut_rectangle(std::uint64_t seed, std::size_t count, std::int32_t length,
                                     std::int64_t units, std::int64_t unit_bytes) {
  struct Box {
    std::int32_t begin, end;
    std::int64_t units;
  };
  std::vector<Box> boxes{{0, length, units}};
  std::uint64_t draws = 0;
  const auto below = [&](std::int64_t bound) {
    return static_cast<std::int64_t>(
        random_below(seed, 1, draws++, static_cast<std::uint64_t>(bound)));
  };
  const auto area = [](const Box& box) { return (box.end - box.begin) * box.units; };
  while (boxes.size() < count) {
    // The larger of two, so that sizes vary but no box keeps most of the rectangle.
    const auto any = [&] {
      return static_cast<std::size_t>(below(static_cast<std::int64_t>(boxes.size())));
    };
    const std::size_t a = any(), b = any();
    Box& box = area(boxes[a]) > area(boxes[b]) ? boxes[a] : boxes[b];
    Box rest = box;
    if (below(2) == 0) {
      if (box.end - box.begin < 2) continue;
      box.end = box.begin + 1 + static_cast<std::int32_t>(below(box.end - box.begin - 1));
      rest.begin = box.end;
    } else {
      if (box.units < 2) continue;
      box.units = 1 + below(box.units - 1);
      rest.units -= box.units;
    }
    boxes.push_back(rest);
  }
  std::vector<LiveBytes> items;
  for (const Box& box : boxes) items.push_back({{box.begin, box.end}, box.units * unit_bytes});
  for (std::size_t i = items.size(); i > 1; --i)
    std::swap(items[i - 1], items[static_cast<std::size_t>(below(static_cast<std::int64_t>(i)))]);
  return items;
}

std::vector<LiveBytes> training_step(std::uint64_t seed, std::int32_t layers) {
  constexpr std::int32_t kNodes = 10;  // of a layer, forward; twice as many backward
  std::vector<LiveBytes> items;
  std::uint64_t draws = 0;
  const auto bytes = [&] {
    constexpr std::int64_t kSizes[] = {64, 4096, 196608, 262144, 262144, 1048576, 1441792, 2883584};
    return kSizes[random_below(seed, 2, draws++, std::size(kSizes))];
  };
  const std::int32_t end = 3 * kNodes * layers;
  for (std::int32_t layer = 0; layer < layers; ++layer) {
    const std::int32_t forward = layer * kNodes, backward = end - 2 * kNodes * (layer + 1);
    for (std::int32_t i = 0; i < 8; ++i)
      items.push_back({{forward + i, backward + 2 * (kNodes - i)}, bytes()});
    for (std::int32_t i = 0; i < 12; ++i) {
      const std::int32_t begin = i < 4 ? forward + 2 * i : backward + 2 * (i - 4);
      items.push_back(
          {{begin, begin + 1 + static_cast<std::int32_t>(random_below(seed, 3, draws++, 4))},
           bytes()});
    }
  }
  return items;
}

std::string placement_fault(const std::vector<LiveBytes>& items,
                            const std::vector<std::int64_t>& offsets, std::int64_t bytes,
                            std::int64_t alignment) {
  if (offsets.size() != items.size())
    return fmt::format("{} offsets of {} items", offsets.size(), items.size());
  for (std::size_t i = 0; i < items.size(); ++i) {
    if (items[i].lifetime.empty()) continue;
    if (offsets[i] < 0 || offsets[i] % alignment != 0 || offsets[i] + items[i].bytes > bytes)
      return fmt::format("item {} of {} bytes lies at {}, arena {}", i, items[i].bytes, offsets[i],
                         bytes);
    for (std::size_t j = 0; j < i; ++j) {
      const analysis::Lifetime &a = items[i].lifetime, &b = items[j].lifetime;
      const bool meet = std::max(a.begin, b.begin) < std::min(a.end, b.end);
      const bool apart =
          offsets[i] + items[i].bytes <= offsets[j] || offsets[j] + items[j].bytes <= offsets[i];
      if (meet && !apart) return fmt::format("items {} and {} share bytes", j, i);
    }
  }
  return "";
}

}  // namespace anabatic::testing
