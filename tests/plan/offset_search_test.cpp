// SPDX-License-Identifier: Apache-2.0
// The search for offsets against brute force, on hard instances and at its limits.
#include "plan/offset_search.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <numeric>

#include "anabatic/error.h"
#include "base/philox.h"
#include "base/rounding.h"
#include "support/offset_instances.h"

namespace anabatic::testing {
namespace {

using plan::Fit;
using plan::LiveBytes;
using plan::Placement;
using ::testing::HasSubstr;
using ::testing::ThrowsMessage;

// n items of 0 to max_units units within `length` positions; some without bytes or lifetime.
std::vector<LiveBytes> random_items(std::uint64_t seed, std::size_t n, std::uint64_t length,
                                    std::uint64_t max_units, std::int64_t unit_bytes) {
  std::vector<LiveBytes> items;
  for (std::size_t i = 0; i < n; ++i) {
    const auto a = static_cast<std::int32_t>(random_below(seed, 1, i, length + 1));
    const auto b = static_cast<std::int32_t>(random_below(seed, 2, i, length + 1));
    const auto units = static_cast<std::int64_t>(random_below(seed, 3, i, max_units + 1));
    items.push_back({{std::min(a, b), std::max(a, b)}, units * unit_bytes});
  }
  return items;
}

// Can items i, i + 1, ... lie in `units`, given where those before them lie? All offsets are tried.
bool fits(const std::vector<LiveBytes>& items, std::int64_t units,
          std::vector<std::int64_t>& offsets) {
  const std::size_t i = offsets.size();
  if (i == items.size()) return true;
  for (std::int64_t offset = 0; offset + items[i].bytes <= units; ++offset) {
    bool is_free = true;
    for (std::size_t j = 0; j < i && is_free; ++j)
      is_free = !items[i].lifetime.overlaps(items[j].lifetime) ||
                offset + items[i].bytes <= offsets[j] || offsets[j] + items[j].bytes <= offset;
    if (!is_free) continue;
    offsets.push_back(offset);
    if (fits(items, units, offsets)) return true;
    offsets.pop_back();
  }
  return false;
}

// The smallest arena for items of few units.
std::int64_t smallest_arena(std::vector<LiveBytes> items) {
  std::erase_if(items, [](const LiveBytes& item) { return item.lifetime.empty(); });
  std::sort(items.begin(), items.end(), [](const LiveBytes& a, const LiveBytes& b) {
    return a.lifetime.begin < b.lifetime.begin;
  });
  for (std::int64_t units = analysis::peak_live_bytes(items);; ++units)
    if (std::vector<std::int64_t> offsets; fits(items, units, offsets)) return units;
}

// `units` are in use at every position: what ends makes room for what begins, often in the wrong
// places.
std::vector<LiveBytes> full_positions(std::uint64_t seed, std::int64_t units, std::size_t count) {
  std::vector<LiveBytes> items;
  std::uint64_t draws = 0;
  const auto below = [&](std::int64_t bound) {
    return static_cast<std::int64_t>(
        random_below(seed, 4, draws++, static_cast<std::uint64_t>(bound)));
  };
  std::int64_t free = units;
  for (std::int32_t position = 0;; ++position) {
    const bool is_last = items.size() >= count;
    for (LiveBytes& item : items)
      if (item.lifetime.end < 0 && (is_last || below(4) == 0)) {
        item.lifetime.end = position;
        free += item.bytes;
      }
    if (is_last) return items;
    while (free > 0) {
      const std::int64_t part = 1 + below(std::min<std::int64_t>(free, 4));
      items.push_back({{position, -1}, part});
      free -= part;
    }
  }
}

std::vector<LiveBytes> times(std::vector<LiveBytes> items, std::int64_t unit_bytes) {
  for (LiveBytes& item : items) item.bytes *= unit_bytes;
  return items;
}

// Parts one after the other in time.
std::vector<LiveBytes> in_a_row(const std::vector<std::vector<LiveBytes>>& parts,
                                std::int32_t length) {
  std::vector<LiveBytes> items;
  std::int32_t begin = 0;
  for (const auto& part : parts) {
    for (const LiveBytes& item : part)
      items.push_back({{begin + item.lifetime.begin, begin + item.lifetime.end}, item.bytes});
    begin += length;
  }
  return items;
}

void expect_optimal(const std::vector<LiveBytes>& units) {
  const std::int64_t optimum = smallest_arena(units);
  const Placement placement = plan::place_by_search(times(units, 64));
  EXPECT_EQ(placement.bytes, 64 * optimum);
  EXPECT_EQ(placement_fault(times(units, 64), placement.offsets, placement.bytes, 64), "");
  const Fit fit = plan::place_within(units, optimum, 1);
  ASSERT_TRUE(fit.placement);
  EXPECT_EQ(placement_fault(units, fit.placement->offsets, optimum, 1), "");
  const Fit smaller = plan::place_within(units, optimum - 1, 1);
  EXPECT_FALSE(smaller.placement);
  EXPECT_TRUE(smaller.is_impossible);
}

TEST(OffsetSearch, EqualsBruteForceOnSmallCases) {
  for (std::uint64_t seed = 0; seed < 300; ++seed) {
    SCOPED_TRACE(seed);
    expect_optimal(random_items(seed, 3 + seed % 5, 3 + seed % 7, 7, 1));
  }
}

TEST(OffsetSearch, EqualsBruteForceWhereTheBoundIsOutOfReach) {
  int above_bound = 0;
  for (std::uint64_t seed = 0; seed < 1500; ++seed) {
    SCOPED_TRACE(seed);
    const auto items = full_positions(seed, 8 + static_cast<std::int64_t>(seed % 5), 18);
    above_bound += smallest_arena(items) > analysis::peak_live_bytes(items);
    expect_optimal(items);
  }
  EXPECT_GE(above_bound, 5);
}

TEST(OffsetSearch, FillsARectangleThatWasCutUp) {
  for (std::uint64_t seed = 0; seed < 12; ++seed) {
    SCOPED_TRACE(seed);
    const auto items = cut_rectangle(seed, 60, 24, 256, 1024);
    EXPECT_GT(plan::place_by_size(items).bytes, 256 * 1024);
    const Fit fit = plan::place_within(items, 256 * 1024, 1);
    ASSERT_TRUE(fit.placement);
    EXPECT_EQ(fit.placement->bytes, 256 * 1024);
    EXPECT_EQ(placement_fault(items, fit.placement->offsets, 256 * 1024, 1), "");
    EXPECT_EQ(plan::place_by_search(items).bytes, 256 * 1024);
  }
}

// Each part alone is hard for the greedy orders, and a failure in one says nothing of the others:
// a search that tried them together would not end.
TEST(OffsetSearch, SolvesIndependentPartsOneByOne) {
  std::vector<std::vector<LiveBytes>> parts;
  for (std::uint64_t seed = 0; seed < 12; ++seed)
    parts.push_back(cut_rectangle(seed, 50, 20, 256, 64));
  std::vector<LiveBytes> items = in_a_row(parts, 20);
  const Fit apart = plan::place_within(items, 256 * 64, 64);
  ASSERT_TRUE(apart.placement);
  EXPECT_EQ(placement_fault(items, apart.placement->offsets, 256 * 64, 64), "");

  // One item that lives through them all joins them until it is placed.
  items.push_back({{0, 12 * 20}, 100 * 64});
  const Fit joined = plan::place_within(items, 356 * 64, 64);
  ASSERT_TRUE(joined.placement);
  EXPECT_EQ(placement_fault(items, joined.placement->offsets, 356 * 64, 64), "");
}

TEST(OffsetSearch, SaysThatLessThanTheLoadIsImpossible) {
  const auto items = cut_rectangle(3, 100, 40, 512, 64);
  const Fit fit = plan::place_within(items, 512 * 64 - 1, 1, {.steps = 1});
  EXPECT_FALSE(fit.placement);
  EXPECT_TRUE(fit.is_impossible);
}

TEST(OffsetSearch, TellsGivingUpFromImpossible) {
  const auto items = cut_rectangle(3, 300, 100, 1024, 64);
  const Fit fit = plan::place_within(items, 1024 * 64, 1, {.steps = 1});
  EXPECT_FALSE(fit.placement);
  EXPECT_FALSE(fit.is_impossible);
  EXPECT_LE(plan::place_by_search(items, {.steps = 0}).bytes, plan::place_by_size(items).bytes);
}

TEST(OffsetSearch, KeepsOffsetsAligned) {
  for (std::int64_t alignment : {1, 3, 64, 4096}) {
    SCOPED_TRACE(alignment);
    const auto items = random_items(7, 60, 20, 5000, 1);
    std::vector<LiveBytes> rounded = items;
    for (LiveBytes& item : rounded) item.bytes = round_up(item.bytes, alignment);
    const std::int64_t bound = analysis::peak_live_bytes(rounded);
    const Fit fit = plan::place_within(items, bound + bound / 10, alignment);
    ASSERT_TRUE(fit.placement);
    EXPECT_EQ(placement_fault(rounded, fit.placement->offsets, fit.placement->bytes, alignment),
              "");
  }
  // 65 bytes take 128: two of them do not fit where the bytes alone would.
  const std::vector<LiveBytes> pair{{{0, 1}, 65}, {{0, 1}, 65}};
  EXPECT_FALSE(plan::place_within(pair, 255, 64).placement);
  EXPECT_TRUE(plan::place_within(pair, 256, 64).placement);
  EXPECT_TRUE(plan::place_within(pair, 130, 1).placement);
}

TEST(OffsetSearch, ReadsLifetimesAsHalfOpen) {
  const std::vector<LiveBytes> apart{{{0, 2}, 64}, {{2, 4}, 64}};
  EXPECT_EQ(plan::place_by_search(apart).offsets, (std::vector<std::int64_t>{0, 0}));
  const std::vector<LiveBytes> meeting{{{0, 3}, 64}, {{2, 4}, 64}};
  EXPECT_EQ(plan::place_by_search(meeting).bytes, 128);
}

TEST(OffsetSearch, PutsWhatNeedsNoRoomAtZero) {
  const std::vector<LiveBytes> items{{{0, 2}, 0}, {{0, 2}, 64}, {{1, 1}, 640}, {{0, 2}, 64}};
  const Placement placement = plan::place_by_search(items);
  EXPECT_EQ(placement.bytes, 128);
  EXPECT_EQ(placement.offsets[0], 0);
  EXPECT_EQ(placement.offsets[2], 0);
  EXPECT_EQ(plan::place_by_search({}).bytes, 0);
  EXPECT_TRUE(plan::place_within({}, 0, 64).placement);
  EXPECT_TRUE(plan::place_within({}, -1, 64).is_impossible);
}

TEST(OffsetSearch, RepeatsItself) {
  const auto items = cut_rectangle(11, 150, 60, 1024, 64);
  const plan::SearchLimits limits{.steps = 1 << 22};
  const Placement once = plan::place_by_search(items, limits);
  const Placement twice = plan::place_by_search(items, limits);
  EXPECT_EQ(once.offsets, twice.offsets);
  EXPECT_EQ(once.bytes, twice.bytes);
}

TEST(OffsetSearch, IsNeverWorseThanTheGreedyPlacement) {
  for (std::uint64_t seed = 0; seed < 20; ++seed) {
    SCOPED_TRACE(seed);
    const auto items = random_items(seed, 150, 60, 5000, 1);
    const Placement placement = plan::place_by_search(items, {.steps = 1 << 20});
    EXPECT_EQ(placement_fault(items, placement.offsets, placement.bytes, 64), "");
    EXPECT_LE(placement.bytes, plan::place_by_size(items).bytes);
  }
}

TEST(OffsetSearch, PlacesTenThousandBuffersOfAStepTightly) {
  const auto items = training_step(1, 500);
  ASSERT_EQ(items.size(), 10000U);
  const Placement placement = plan::place_by_search(items, {.slack = 0.005});
  EXPECT_EQ(placement_fault(items, placement.offsets, placement.bytes, 64), "");
  const auto bound = static_cast<double>(analysis::peak_live_bytes(items));
  EXPECT_LE(static_cast<double>(placement.bytes), 1.02 * bound);
}

TEST(OffsetSearch, RefusesWhatIsNoInstance) {
  const auto placing = [](std::vector<LiveBytes> items, std::int64_t alignment) {
    return [=] { return plan::place_within(items, 1 << 20, alignment); };
  };
  EXPECT_THAT(placing({{{0, 1}, -1}}, 64),
              ThrowsMessage<InvalidArgument>(HasSubstr("expected sizes >= 0, got -1")));
  EXPECT_THAT(placing({{{2, 1}, 1}}, 64),
              ThrowsMessage<InvalidArgument>(HasSubstr("expected begin <= end, got [2, 1)")));
  EXPECT_THAT(placing({{{-2, 1}, 1}}, 64),
              ThrowsMessage<InvalidArgument>(HasSubstr("expected begin >= 0, got -2")));
  EXPECT_THAT(placing({{{0, 1}, 1}}, 0),
              ThrowsMessage<InvalidArgument>(HasSubstr("expected an alignment > 0")));
  const std::int64_t half = std::int64_t{1} << 62;
  EXPECT_THAT(placing({{{0, 1}, half}, {{0, 1}, half}}, 64),
              ThrowsMessage<InvalidArgument>(HasSubstr("exceeds 2^62")));
}

}  // namespace
}  // namespace anabatic::testing
