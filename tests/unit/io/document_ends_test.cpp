// SPDX-License-Identifier: Apache-2.0
#include "io/document_ends.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace anabatic::io {
namespace {

using Ids = std::vector<std::int32_t>;

// The ids before `first` belong to another document.
Ids with_prefix(Ids prefix, Ids text) {
  Ids ids{1, 2};
  ids.insert(ids.end(), text.begin(), text.end());
  DocumentEnds{.prefix = prefix}.put_before(ids, 2);
  return {ids.begin() + 2, ids.end()};
}

Ids with_suffix(Ids suffix, Ids text) {
  Ids ids{1, 2};
  ids.insert(ids.end(), text.begin(), text.end());
  DocumentEnds{.suffix = suffix}.put_behind(ids, 2);
  return {ids.begin() + 2, ids.end()};
}

TEST(DocumentEnds, PutsAPrefixThatIsNotThere) {
  EXPECT_EQ(with_prefix({}, {5}), (Ids{5}));
  EXPECT_EQ(with_prefix({1}, {5}), (Ids{1, 5}));
  EXPECT_EQ(with_prefix({1}, {}), (Ids{1}));
  EXPECT_EQ(with_prefix({1}, {1, 5}), (Ids{1, 5}));
  EXPECT_EQ(with_prefix({1}, {5, 1}), (Ids{1, 5, 1}));
  EXPECT_EQ(with_prefix({2}, {}), (Ids{2}));  // the 2 ahead is not this document's
}

TEST(DocumentEnds, CompletesAPrefixOfSeveralTokens) {
  EXPECT_EQ(with_prefix({1, 2}, {5}), (Ids{1, 2, 5}));
  EXPECT_EQ(with_prefix({1, 2}, {2, 5}), (Ids{1, 2, 5}));
  EXPECT_EQ(with_prefix({1, 2}, {1, 2, 5}), (Ids{1, 2, 5}));
  EXPECT_EQ(with_prefix({1, 2}, {2}), (Ids{1, 2}));
  EXPECT_EQ(with_prefix({1, 2}, {1, 5}), (Ids{1, 5}));
}

TEST(DocumentEnds, PutsASuffixThatIsNotThere) {
  EXPECT_EQ(with_suffix({}, {5}), (Ids{5}));
  EXPECT_EQ(with_suffix({2}, {5}), (Ids{5, 2}));
  EXPECT_EQ(with_suffix({2}, {5, 2}), (Ids{5, 2}));
  EXPECT_EQ(with_suffix({2}, {}), (Ids{2}));
  EXPECT_EQ(with_suffix({3, 4}, {5, 3}), (Ids{5, 3, 4}));
  EXPECT_EQ(with_suffix({3, 4}, {5, 3, 4}), (Ids{5, 3, 4}));
  EXPECT_EQ(with_suffix({3, 4}, {5, 4}), (Ids{5, 4}));
  EXPECT_EQ(with_suffix({3, 4}, {5}), (Ids{5, 3, 4}));
}

}  // namespace
}  // namespace anabatic::io
