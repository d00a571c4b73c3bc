// SPDX-License-Identifier: Apache-2.0
// What connects the ranks of a run, as plain data: a laptop can run on the links of a cluster.
#pragma once
#include <cstdint>
#include <string>
#include <vector>

namespace anabatic::spec {

struct Link {
  double latency_seconds = 0;
  double bytes_per_second = 0;  // in each direction; 0: no limit
};

// Ranks share a level in blocks of `num_ranks`: the first so many, the next, and so on.
struct ClusterLevel {
  std::string name;  // "node", "rack"
  std::int32_t num_ranks = 1;
  Link link{};  // between ranks of a block that are in no common block below it
};

struct ClusterSpec {
  std::vector<ClusterLevel> levels;  // each a multiple of the one before

  std::int32_t num_ranks() const { return levels.empty() ? 0 : levels.back().num_ranks; }
};

// InvalidArgument when a rank is outside the cluster, or levels are not multiples.
Link link_between(const ClusterSpec& cluster, std::int32_t from, std::int32_t to);

}  // namespace anabatic::spec
