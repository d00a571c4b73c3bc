// SPDX-License-Identifier: Apache-2.0
// Lists of key blocks against their rules, pair by pair.
#include "spec/key_blocks.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <set>

#include "anabatic/error.h"
#include "support/error_message.h"

namespace anabatic::spec {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

std::vector<std::int32_t> list_of(const BlockLists& lists, std::int64_t group, std::int64_t block) {
  const auto list = lists.of(group, block);
  return {list.begin(), list.end()};
}

TEST(BlockLists, AreTheUnionOfTheirRules) {
  constexpr std::int64_t kPlaces = 403, kSize = 4;
  const BlockPattern pattern{
      .size = kSize, .local = 3, .global = 2, .stride = 5, .random = 2, .seed = 11};
  BlockPattern drawn = pattern;
  drawn.local = drawn.global = drawn.stride = 0;
  const BlockLists lists = make_block_lists(pattern, kPlaces),
                   of_draws = make_block_lists(drawn, kPlaces);
  ASSERT_EQ(lists.blocks, 101);
  std::set<std::int32_t> all_drawn;
  for (std::int64_t i = 0; i < lists.blocks; ++i) {
    const std::vector<std::int32_t> draws = list_of(of_draws, 0, i);
    EXPECT_EQ(std::ssize(draws), 1 + std::min<std::int64_t>(i, 2)) << i;
    all_drawn.insert(draws.begin(), draws.end() - 1);
    std::vector<std::int32_t> want;
    for (std::int32_t j = 0; j <= i; ++j)
      if (i - j < 3 || j < 2 || (j + 1) % 5 == 0 || std::ranges::count(draws, j) > 0)
        want.push_back(j);
    EXPECT_EQ(list_of(lists, 0, i), want) << i;
  }
  EXPECT_GT(all_drawn.size(), 50u);
  drawn.seed = 12;
  EXPECT_NE(make_block_lists(drawn, kPlaces).ids, of_draws.ids);
  // Those of a shorter document are its beginning.
  const BlockLists shorter = make_block_lists(pattern, 200);
  EXPECT_TRUE(std::equal(shorter.ids.begin(), shorter.ids.end(), lists.ids.begin()));
}

TEST(BlockLists, HaveTheirOwnBlockWhateverTheRule) {
  const BlockLists lists = make_block_lists({.size = 10, .global = 1}, 35);
  EXPECT_THAT(list_of(lists, 0, 0), ElementsAre(0));
  EXPECT_THAT(list_of(lists, 0, 3), ElementsAre(0, 3));
  EXPECT_EQ(make_block_lists({.size = 10, .local = 1}, 0).blocks, 0);
}

TEST(BlockLists, OfAMaskAreItsBlocksUpToTheRow) {
  BlockMask mask{.groups = 2,
                 .blocks = 3,
                 .listed = {1, 1, 1, 0, 1, 1, 1, 0, 1,  //
                            1, 0, 0, 1, 1, 0, 0, 0, 1}};
  const BlockPattern pattern{.size = 2, .mask = std::make_shared<const BlockMask>(mask)};
  const BlockLists lists = make_block_lists(pattern, 6);
  EXPECT_EQ(lists.groups, 2);
  EXPECT_THAT(lists.offsets, ElementsAre(0, 1, 2, 4, 4, 5, 7, 8));
  EXPECT_THAT(lists.ids, ElementsAre(0, 1, 0, 2, 0, 0, 1, 2));
  EXPECT_EQ(make_block_lists(pattern, 3).blocks, 2);
  EXPECT_THAT(testing::message_of<InvalidArgument>([&] { make_block_lists(pattern, 7); }),
              HasSubstr("at least 4 blocks for 7 tokens in blocks of 2, got 3"));
}

TEST(BlockLists, CountTheKeysThatTheyLeave) {
  for (const std::int64_t size : {1, 3, 8})
    for (const std::int64_t window : {0, 1, 5, 20}) {
      const BlockLists lists =
          make_block_lists({.size = size, .local = 2, .stride = 3, .random = 1}, 50);
      double pairs = 0;
      for (std::int64_t place = 0; place < 50; ++place) {
        const auto list = lists.of(0, place / size);
        double keys = 0;
        for (std::int64_t key = window > 0 ? std::max<std::int64_t>(place + 1 - window, 0) : 0;
             key <= place; ++key)
          keys += static_cast<double>(std::ranges::count(list, key / size));
        EXPECT_EQ(lists.listed_keys(place, window), keys) << size << " " << window << " " << place;
        pairs += keys;
      }
      EXPECT_EQ(lists.density(50, window), pairs / causal_pairs(50, window));
    }
  EXPECT_EQ(make_block_lists({.size = 7, .stride = 1}, 100).density(100, 0), 1);
  EXPECT_EQ(causal_pairs(5, 2), 1 + 2 + 2 + 2 + 2);
}

TEST(BlockPattern, SaysWhatItIs) {
  EXPECT_EQ((BlockPattern{.size = 64, .local = 8, .stride = 16}).to_string(), "local 8, stride 16");
  const BlockPattern of_file{.size = 64,
                             .mask = std::make_shared<const BlockMask>(
                                 BlockMask{.groups = 4, .blocks = 16, .listed = {}})};
  EXPECT_EQ(of_file.to_string(), "a file of 16 x 16 blocks for 4 groups of heads");
}

}  // namespace
}  // namespace anabatic::spec
