// SPDX-License-Identifier: Apache-2.0
// How much of the machine's CPUs this process may use: its affinity mask and the quota of its
// control group.
#pragma once
#include <optional>
#include <string>
#include <vector>

#include "device/cgroup.h"

namespace anabatic::device {

struct CpuLimits {
  std::vector<int> cores;       // of the affinity mask, ascending; at least one
  std::optional<double> quota;  // in cores, where it is less than those: 1.5

  // The number of threads that get a core each: cores of the mask, or whole cores of the quota. At
  // least one.
  int num_threads() const;
  // Whether `num_threads` threads may spin while they wait. Under a quota a spinning thread uses up
  // the time of the threads that it waits for, unless each has a whole core.
  bool may_spin(int num_threads) const;
};

// Reads both limits again on each call.
CpuLimits cpu_limits(const SystemRoots& roots = {});

// "2 by the affinity mask, 1.5 by the CPU quota of a cgroup".
std::string to_string(const CpuLimits& limits);

}  // namespace anabatic::device
