// SPDX-License-Identifier: Apache-2.0
#include "spec/cluster.h"

#include <algorithm>

#include "base/error.h"

namespace anabatic::spec {

Link link_between(const ClusterSpec& cluster, std::int32_t from, std::int32_t to) {
  std::int32_t below = 1;
  for (const ClusterLevel& level : cluster.levels) {
    ANABATIC_REQUIRE(level.num_ranks >= below && level.num_ranks % below == 0,
                     "[cluster] level {}: expected a multiple of {} ranks, got {}", level.name,
                     below, level.num_ranks);
    below = level.num_ranks;
  }
  ANABATIC_REQUIRE(std::min(from, to) >= 0 && std::max(from, to) < cluster.num_ranks(),
                   "[cluster] expected devices for ranks {} and {}, got {} devices", from, to,
                   cluster.num_ranks());
  for (const ClusterLevel& level : cluster.levels)
    if (from / level.num_ranks == to / level.num_ranks) return level.link;
  ANABATIC_CHECK(false, "[cluster] ranks {} and {} share no level", from, to);
}

}  // namespace anabatic::spec
