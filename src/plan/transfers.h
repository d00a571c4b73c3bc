// SPDX-License-Identifier: Apache-2.0
// Simulates the queue of a step's transfers to and from a disk together with the calls that wait.
#pragma once
#include <cstdint>
#include <span>
#include <vector>

#include "plan/prices.h"

namespace anabatic::plan {

// A transfer in both directions. Positions of the step before which something happens: a write or
// read is queued, or awaited.
struct Transfer {
  static constexpr std::int32_t kNever = -1;
  std::int64_t bytes = 0;
  std::int32_t write_at = kNever, written_by = kNever, read_at = kNever, needed_at = kNever;
  bool is_once_a_step = false;  // its reads happen in the last micro-batch alone
};

struct Calls {
  std::vector<double> seconds{};    // by position of the step
  std::vector<bool> only_last{};    // of these, those of updates, which the last micro-batch has
  std::int32_t forward_length = 0;  // positions below it are of the forward
  std::int32_t before_update = 0;   // positions below it run once a micro-batch
};
// Predictions for a planned step. The device's peaks are those of with_peaks.
Calls predicted_calls(const ir::Graph& graph, const Plan& plan, const spec::DeviceSpec& device,
                      const OpEfficiency& efficiency);

// Seconds that the calls of one step wait when `num_steps` follow one another, one transfer after
// the other at the disk's speed.
double waited_seconds(const Calls& calls, std::span<const Transfer> transfers,
                      const DiskSpeed& disk, std::int64_t num_micro_batches, int num_steps);

// Seconds that the calls of a step wait for the plan's transfers when steps follow one another.
double disk_seconds(const ir::Graph& graph, const Plan& plan, const spec::DeviceSpec& device,
                    const OpEfficiency& efficiency, std::int64_t num_micro_batches);

// Seconds that the disk is busy in a step: a lower bound of the step's time.
double transfer_seconds(const Plan& plan, const DiskSpeed& disk, std::int64_t num_micro_batches);

}  // namespace anabatic::plan
