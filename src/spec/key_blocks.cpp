// SPDX-License-Identifier: Apache-2.0
#include "spec/key_blocks.h"

#include <fmt/core.h>

#include <algorithm>
#include <limits>

#include "base/error.h"
#include "base/philox.h"
#include "base/rounding.h"

namespace anabatic::spec {
namespace {

// `count` of the blocks [0, block), each set alike often (Floyd, "Programming pearls", CACM 1987).
void draw_blocks(std::uint64_t seed, std::int64_t block, std::int64_t count,
                 std::vector<std::int32_t>& ids) {
  const std::size_t first = ids.size();
  for (std::int64_t last = std::max(block - count, std::int64_t{0}); last < block; ++last) {
    const auto drawn = static_cast<std::int32_t>(
        random_below(seed, static_cast<std::uint64_t>(block), static_cast<std::uint64_t>(last),
                     static_cast<std::uint64_t>(last) + 1));
    const auto begin = ids.begin() + static_cast<std::ptrdiff_t>(first);
    const bool is_taken = std::find(begin, ids.end(), drawn) != ids.end();
    ids.push_back(is_taken ? static_cast<std::int32_t>(last) : drawn);
  }
}

void add_rule(const BlockPattern& pattern, std::int64_t block, std::vector<std::int32_t>& ids) {
  const auto add = [&](std::int64_t id) { ids.push_back(static_cast<std::int32_t>(id)); };
  add(block);
  for (std::int64_t id = std::max(block - pattern.local + 1, std::int64_t{0}); id < block; ++id)
    add(id);
  for (std::int64_t id = 0; id < std::min(pattern.global, block); ++id) add(id);
  for (std::int64_t id = pattern.stride - 1; pattern.stride > 0 && id < block; id += pattern.stride)
    add(id);
  draw_blocks(pattern.seed, block, pattern.random, ids);
}

// Those up to the block itself: attention is causal.
void add_mask(const BlockMask& mask, std::int64_t group, std::int64_t block,
              std::vector<std::int32_t>& ids) {
  const std::int64_t row = (group * mask.blocks + block) * mask.blocks;
  for (std::int64_t id = 0; id <= block; ++id)
    if (mask.listed[static_cast<std::size_t>(row + id)] != 0)
      ids.push_back(static_cast<std::int32_t>(id));
}

}  // namespace

std::string BlockPattern::to_string() const {
  if (mask)
    return fmt::format("a file of {} x {} blocks for {} group{} of heads", mask->blocks,
                       mask->blocks, mask->groups, mask->groups == 1 ? "" : "s");
  std::string text;
  const auto add = [&](const char* name, std::int64_t value) {
    if (value > 0) text += fmt::format("{}{} {}", text.empty() ? "" : ", ", name, value);
  };
  add("local", local);
  add("global", global);
  add("stride", stride);
  add("random", random);
  return text;
}

std::span<const std::int32_t> BlockLists::of(std::int64_t group, std::int64_t block) const {
  const auto at = static_cast<std::size_t>(group * (blocks + 1) + block);
  const auto first = static_cast<std::size_t>(offsets[at]),
             last = static_cast<std::size_t>(offsets[at + 1]);
  return std::span(ids).subspan(first, last - first);
}

double BlockLists::listed_keys(std::int64_t place, std::int64_t window) const {
  const std::int64_t begin = window > 0 ? std::max(place + 1 - window, std::int64_t{0}) : 0;
  std::int64_t keys = 0;
  for (std::int64_t group = 0; group < groups; ++group) {
    const std::span<const std::int32_t> list = of(group, place / size);
    const auto first = std::lower_bound(list.begin(), list.end(), begin / size);
    for (auto id = first; id != list.end() && *id * size <= place; ++id)
      keys += std::min((*id + 1) * size, place + 1) - std::max(*id * size, begin);
  }
  return static_cast<double>(keys) / static_cast<double>(groups);
}

double BlockLists::density(std::int64_t num_places, std::int64_t window) const {
  if (num_places == 0) return 1;
  double pairs = 0;
  for (std::int64_t place = 0; place < num_places; ++place) pairs += listed_keys(place, window);
  return pairs / causal_pairs(num_places, window);
}

BlockLists make_block_lists(const BlockPattern& pattern, std::int64_t num_places) {
  BlockLists lists{.size = pattern.size,
                   .groups = pattern.groups(),
                   .blocks = ceil_div(num_places, pattern.size)};
  ANABATIC_REQUIRE(!pattern.mask || pattern.mask->blocks >= lists.blocks,
                   "[attention] expected a mask of at least {} blocks for {} tokens in blocks of "
                   "{}, got {}",
                   lists.blocks, num_places, pattern.size, pattern.mask ? pattern.mask->blocks : 0);
  constexpr std::size_t kMost = std::numeric_limits<std::int32_t>::max();
  for (std::int64_t group = 0; group < lists.groups; ++group) {
    lists.offsets.push_back(static_cast<std::int32_t>(lists.ids.size()));
    for (std::int64_t block = 0; block < lists.blocks; ++block) {
      const auto first = static_cast<std::ptrdiff_t>(lists.ids.size());
      if (pattern.mask)
        add_mask(*pattern.mask, group, block, lists.ids);
      else
        add_rule(pattern, block, lists.ids);
      std::sort(lists.ids.begin() + first, lists.ids.end());
      lists.ids.erase(std::unique(lists.ids.begin() + first, lists.ids.end()), lists.ids.end());
      ANABATIC_REQUIRE(lists.ids.size() <= kMost,
                       "[attention] expected fewer than 2^31 listed blocks, got more by block {} "
                       "of {}; larger blocks are fewer",
                       block, lists.blocks);
      lists.offsets.push_back(static_cast<std::int32_t>(lists.ids.size()));
    }
  }
  return lists;
}

double causal_pairs(std::int64_t num_places, std::int64_t window) {
  const auto n = static_cast<double>(num_places);
  if (window <= 0 || window >= num_places) return n * (n + 1) / 2;
  const auto w = static_cast<double>(window);
  return w * (w + 1) / 2 + (n - w) * w;
}

}  // namespace anabatic::spec
