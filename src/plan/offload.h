// SPDX-License-Identifier: Apache-2.0
// When saved activations move to disk after the forward and back, and when parameters on disk are
// read for their readers.
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

// Offloads of the graph's nodes `reload`, both of forward values and of states. `order` is forward
// ++ backward ++ update, `calls` are its nodes'. If `spans` has all of them, their times come from
// it, whatever calls and disk are.
std::vector<Offload> find_offloads(const ir::Graph& graph, const std::vector<ir::NodeId>& order,
                                   const Calls& calls, const DiskSpeed& disk,
                                   const spec::OffloadSpans& spans);

// The span of each offload of `plan`, by key (analysis/rebuild.h). For parameters the key is
// "NAME@i" for the i-th reader.
spec::OffloadSpans offload_spans(const ir::Graph& graph, const Plan& plan);

struct ParameterOnDisk {
  std::string name;
  std::int64_t bytes = 0;
  int num_copies = 0;  // copies that a micro-batch reads, one for each reader
};
// The parameters that `graph` reads from disk, those first that move most for their bytes.
std::vector<ParameterOnDisk> reloaded_parameters(const ir::Graph& graph);

// Time that calls lose because a value moves to disk and back: memory's time to move it, and to sum
// its blocks.
double offload_seconds(std::int64_t bytes, const spec::DeviceSpec& device);
// The same for an offload of a value, or of a parameter, which is only read.
double offload_seconds(const Offload& offload, const spec::DeviceSpec& device);
// The same for a state in a window, which its update sums while it has it in registers.
double window_seconds(const SwapWindow& window, const spec::DeviceSpec& device);

}  // namespace anabatic::plan
