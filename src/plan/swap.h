// SPDX-License-Identifier: Apache-2.0
// Which states are on disk, and their windows in the frame around their update.
#pragma once
#include "base/rounding.h"
#include "ir/graph.h"
#include "plan/plan.h"

namespace anabatic::plan {

// Alignment of addresses, offsets and sizes that move to and from a disk.
inline constexpr std::int64_t kSwapAlignmentBytes = 4096;
// Rounds up to whole sectors.
inline std::int64_t align_to_sectors(std::int64_t bytes) {
  return round_up(bytes, kSwapAlignmentBytes);
}

// Moves states of the optimizer, and parameters that the graph reloads, out of memory into windows
// of the frame. To be called when the plan's other buffers and workspaces have their offsets;
// `order` is forward ++ backward ++ update.
//
// A window takes bytes that are free from its read to its use. The bytes of an earlier window
// become free with its last use, because transfers happen in the order in which they are queued:
// the read of the later window follows the write of the earlier one. A window takes the place where
// its read can begin earliest, perhaps long before the update. Of several such places it takes the
// one that stays free longest afterwards, so that its write can continue into the next step.
// Trivial planner: separate bytes for each, read before its use and written after it.
void place_windows(const ir::Graph& graph, const std::vector<ir::NodeId>& order,
                   const PlanOptions& options, Plan& plan);

}  // namespace anabatic::plan
