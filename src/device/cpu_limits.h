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

  int num_physical_cores() const { return static_cast<int>(cores.size()) - num_siblings; }
  // As many as have a physical core of their own: the mask's, or the whole cores of the quota; at
  // least one. Two threads of one core share its multiply-add units, and gain nothing in products.
  int num_threads() const;
  // Whether a thread of `num_threads` may spin while it waits. Under a quota it would use up the
  // time of the threads that it waits for, unless each has a whole core.
  bool may_spin(int num_threads) const;
};

// Reads both anew.
CpuLimits cpu_limits(const SystemRoots& roots = {});

// "2 by the affinity mask (4 hardware threads), 1.5 by the CPU quota of a cgroup".
std::string to_string(const CpuLimits& limits);

}  // namespace anabatic::device
