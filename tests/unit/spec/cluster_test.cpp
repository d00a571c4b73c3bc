// SPDX-License-Identifier: Apache-2.0
#include "spec/cluster.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "anabatic/error.h"

namespace anabatic::spec {
namespace {

using ::testing::HasSubstr;
using ::testing::ThrowsMessage;

TEST(Cluster, RanksUseTheLinkOfTheLowestLevelThatTheyShare) {
  const ClusterSpec cluster{{{"node", 2, {1, 10}}, {"rack", 6, {2, 20}}, {"cluster", 12, {3, 30}}}};
  EXPECT_EQ(cluster.num_ranks(), 12);
  for (std::int32_t from = 0; from < 12; ++from)
    for (std::int32_t to = 0; to < 12; ++to) {
      const double level = from / 2 == to / 2 ? 1 : from / 6 == to / 6 ? 2 : 3;
      EXPECT_EQ(link_between(cluster, from, to).latency_seconds, level) << from << " " << to;
      EXPECT_EQ(link_between(cluster, from, to).bytes_per_second, 10 * level);
    }
}

TEST(Cluster, WithTooFewDevicesIsRefused) {
  EXPECT_THAT(
      [] {
        (void)link_between({{{"node", 2, {}}}}, 0, 2);
      },
      ThrowsMessage<InvalidArgument>(
          HasSubstr("expected devices for ranks 0 and 2, got 2 devices")));
  EXPECT_THAT(
      [] {
        (void)link_between({{{"node", 2, {}}, {"rack", 5, {}}}}, 0, 1);
      },
      ThrowsMessage<InvalidArgument>(
          HasSubstr("level rack: expected a multiple of 2 ranks, got 5")));
}

}  // namespace
}  // namespace anabatic::spec
