// SPDX-License-Identifier: Apache-2.0
// What a run is planned for, besides its config: what the machine can do, and which bytes of it a
// process has.
#pragma once
#include <cstdint>
#include <string>

#include "plan/prices.h"
#include "spec/device_spec.h"

namespace anabatic::train {

struct BudgetLimits {
  std::int64_t process_bytes = 0;  // resident before the run's programs, states and arenas exist
  std::int64_t data_bytes = 0;     // of these, tokenizer and data
  std::int64_t mpi_bytes = 0;      // likewise MPI with its buffers
  // What the system has available in addition: the budget if memory.budget is auto. 0: no budget.
  std::int64_t available_bytes = 0;
  bool finds_smallest = true;  // a refusal names the smallest budget, which takes a few more plans
};

struct Machine {
  spec::DeviceSpec device;  // with all peaks
  plan::OpEfficiency efficiency;
  std::string price_source;  // Calibration::source, or whose prices they are
  BudgetLimits limits;
};

// With the prices that are stored for the device. Where `ranks_on_node` of such devices are one
// machine, a rank has its part of what the machine's threads reached together, if that is stored:
// by itself, its threads find caches and memory to themselves, and are faster.
Machine priced_machine(const spec::DeviceSpec& device, const BudgetLimits& limits = {},
                       std::int64_t ranks_on_node = 1);

// Plans of `own` that do for another machine too: the lower peak, the longer time of each op, the
// fewer bytes. Kernels, caches and threads stay those of `own`.
Machine slower_of(Machine own, const Machine& other);

}  // namespace anabatic::train
