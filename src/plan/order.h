// SPDX-License-Identifier: Apache-2.0
// The order in which the nodes of each action run.
#pragma once
#include <compare>
#include <cstdint>
#include <map>
#include <span>
#include <vector>

#include "ir/graph.h"
#include "plan/storage.h"
#include "spec/execution.h"

namespace anabatic::plan {

using Orders = std::map<spec::Action, std::vector<ir::NodeId>>;

// Simple twin: the order given by the graph, changed only where storage_edges require it.
Orders given_order(const ir::Graph& graph);

// List scheduling that frees early: of the nodes that may run, it takes the one that frees the most
// frame bytes net of what it allocates, ties by node id. Weight gradients run as soon as they can,
// since they allocate no frame bytes. Recomputed values run as late as they can. O(n log n). Falls
// back to the given order where that has a lower peak; workspace_bytes is per node.
// gradients_in_frame: they count from their first writer to their last reader.
// shortens_gradients: an order in which gradients live for a short time is a second candidate. An
// update that waits for others delays the weight gradient before it. A value recomputed for a
// weight gradient runs when that frees more.
// Exchanges of the update, sums of gradients among them, are posted as soon as they can. What reads
// a gathered parameter in the update comes last, in the order of the posts.
// Exchanges of a micro-batch between ranks are posted as soon as they can, and awaited when nothing
// else is left to run, unless that costs too much memory.
Orders early_free_order(const ir::Graph& graph, const StorageMap& storages,
                        std::span<const std::int64_t> workspace_bytes,
                        bool gradients_in_frame = false, bool shortens_gradients = false);

// forward ++ backward ++ update.
std::vector<ir::NodeId> concatenate(const Orders& orders);

// The most frame bytes alive at once, workspaces included, before anything runs in place: over the
// step, and after its forward. The latter limits a plan under a
// budget once the forward keeps less.
struct PeakBytes {
  std::int64_t all = 0, backward = 0;
  auto operator<=>(const PeakBytes&) const = default;
};
PeakBytes peak_frame_bytes(const ir::Graph& graph, const StorageMap& storages,
                           std::span<const std::int64_t> workspace_bytes, const Orders& orders,
                           bool gradients_in_frame = false);

}  // namespace anabatic::plan
