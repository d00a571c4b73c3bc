// SPDX-License-Identifier: Apache-2.0
// A cluster as a JSON file, such as two nodes of four ranks each:
//
//   {"levels": [{"name": "node", "ranks": 4, "latency_us": 1, "gb_per_s": 20},
//               {"name": "cluster", "ranks": 8, "latency_us": 10, "gb_per_s": 3}]}
//
// gb_per_s is 1e9 bytes a second in each direction; without it there is no limit.
#pragma once
#include <filesystem>

#include "spec/cluster.h"

namespace anabatic::spec {

// ResourceError for a file that cannot be read. InvalidArgument, which names file and place, for
// another form, unknown names, no levels, and levels that are not multiples of those before.
ClusterSpec read_cluster(const std::filesystem::path& file);

}  // namespace anabatic::spec
