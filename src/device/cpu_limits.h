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
  // Hardware threads of the affinity mask, at least one: the first of each physical core, then the
  // others.
  std::vector<int> cores;
  std::optional<double> quota;  // in cores, where it is less than those: 1.5
  int num_siblings = 0;  // the last so many of `cores` share a core with an earlier one (SMT)
  bool waits_passively = false;  // OMP_WAIT_POLICY=PASSIVE

  int num_physical_cores() const { return static_cast<int>(cores.size()) - num_siblings; }
  // The number of threads that get a physical core each: cores of the mask, or whole cores of the
  // quota. At least one. Two threads of one core share its multiply-add units, so a second one
  // gains nothing in products.
  int num_threads() const;
  // Whether `num_threads` threads may spin while they wait. Under a quota a spinning thread uses up
  // the time of the threads that it waits for, unless each has a whole core. So it does where other
  // processes want the core, which PASSIVE says.
  bool may_spin(int num_threads) const;
};

// Reads the limits and the policy again on each call.
CpuLimits cpu_limits(const SystemRoots& roots = {});

// "2 by the affinity mask (4 hardware threads), 1.5 by the CPU quota of a cgroup".
std::string to_string(const CpuLimits& limits);

}  // namespace anabatic::device
