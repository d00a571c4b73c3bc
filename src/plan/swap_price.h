// SPDX-License-Identifier: Apache-2.0
// What states on disk cost a step in time.
#pragma once
#include <cstdint>

#include "plan/plan.h"
#include "plan/prices.h"

namespace anabatic::plan {

// Seconds that the calls of a step wait for the disk when steps follow one another, simulated: the
// queue of the plan's transfers, one after the other at the disk's speed, beside calls of predicted
// length. 0 without windows. The device's peaks are with_peaks'.
double disk_seconds(const ir::Graph& graph, const Plan& plan, const spec::DeviceSpec& device,
                    const OpEfficiency& efficiency, std::int64_t num_micro_batches);

// That the disk is busy in a step: what no step can be shorter than.
double transfer_seconds(const Plan& plan, const DiskSpeed& disk);

}  // namespace anabatic::plan
