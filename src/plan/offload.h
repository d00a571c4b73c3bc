// SPDX-License-Identifier: Apache-2.0
// When saved activations go to disk after the forward and come back, and when parameters that are
// on disk come for what reads them.
#pragma once
#include <span>
#include <string>
#include <vector>

#include "plan/plan.h"
#include "plan/transfers.h"
#include "spec/decisions.h"

namespace anabatic::plan {

// Fills written_by and read_at of offloads whose other fields are set, ascending by needed_at. A
// value keeps its bytes until the disk is expected to have them, in the order of the writes. It is
// read as late as the disk can deliver it and all that is needed after it. Transfers are expected
// to take a third longer than at the disk's speed. Few parameters are read before their readers, so
// that a slow disk does not fill memory with them. Returns the seconds that calls of a micro-batch
// wait nevertheless.
double schedule(std::span<Offload> offloads, const Calls& calls, const DiskSpeed& disk);

// The graph's nodes `reload` of values that the forward makes, and of states. `order` is forward ++
// backward ++ update, `calls` are its nodes'. Where `spans` has all of them they move as it says,
// whatever calls and disk are.
std::vector<Offload> find_offloads(const ir::Graph& graph, const std::vector<ir::NodeId>& order,
                                   const Calls& calls, const DiskSpeed& disk,
                                   const spec::OffloadSpans& spans);

// When what `plan` offloads moves, by key (analysis/rebuild.h); of parameters, by "NAME@i" for the
// i-th of its readers.
spec::OffloadSpans offload_spans(const ir::Graph& graph, const Plan& plan);

struct ParameterOnDisk {
  std::string name;
  std::int64_t bytes = 0;
  int num_copies = 0;  // that a micro-batch brings, one for each reader
};
// Those that `graph` reads from disk, those first that move most for their bytes.
std::vector<ParameterOnDisk> reloaded_parameters(const ir::Graph& graph);

// What calls lose to the way there and back of a value: memory's time to move it, and to sum its
// blocks.
double offload_seconds(std::int64_t bytes, const spec::DeviceSpec& device);
// Likewise of an offload, be it a value's or a parameter's, which only comes.
double offload_seconds(const Offload& offload, const spec::DeviceSpec& device);
// Likewise of a state in a window, which its update sums on the way through registers.
double window_seconds(const SwapWindow& window, const spec::DeviceSpec& device);

}  // namespace anabatic::plan
